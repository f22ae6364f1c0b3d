-- What admission must know of a key: slots taken, jobs waiting without one, the oldest holder, the
-- newest and the oldest waiting job that was never claimed; and how many guests are to be let in.
select
  (select count(*) from trellis.key_slot s where s.key_hash = $1),
  (select count(*) from trellis.queue q
   where q.key_hash = $1 and q.park <> 'taken' and not exists (
     select 1 from trellis.key_slot s where s.job = q.job and s.linger_until is null)),
  (select j.id from trellis.key_slot s join trellis.job j on j.seq = s.job
   where s.key_hash = $1 and s.linger_until is null order by s.job limit 1),
  (select j.id from trellis.queue q join trellis.job j on j.seq = q.job
   where q.key_hash = $1 and q.park <> 'taken' and q.claims = 0 order by q.job desc limit 1),
  (select j.id from trellis.queue q join trellis.job j on j.seq = q.job
   where q.key_hash = $1 and q.park <> 'taken' and q.claims = 0 order by q.job limit 1),
  (select count(*) from trellis.queue q where q.key_hash = $1 and q.park = 'guest')
