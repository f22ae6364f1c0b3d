select k.key, k.key_hash,
  array(select j.id from trellis.key_slot s join trellis.job j on j.seq = s.job
        where s.key_hash = k.key_hash order by s.job),
  (select count(*) from trellis.queue q
   where q.key_hash = k.key_hash and q.park <> 'taken' and not exists (
     select 1 from trellis.key_slot s where s.job = q.job and s.linger_until is null)),
  exists (select 1 from trellis.queue q where q.key_hash = k.key_hash and q.blocked)
from (
  select distinct j.key, j.key_hash
  from (select job from trellis.queue where key_hash is not null
        union select job from trellis.key_slot) used
  join trellis.job j on j.seq = used.job
  join trellis.lane l on l.id = j.lane
  where l.service = $1 and l.type = $2) k
order by k.key collate "C"
