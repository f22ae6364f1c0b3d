-- Key slots: held by a job, then by its attempt; handed over in creation order.

-- name: key_held
select count(*) from trellis_key_slot where key_hash = ?

-- name: key_next
select q.job, j.policy from trellis_queue q join trellis_job j on j.seq = q.job
where q.key_hash = ? and q.availability = 'waiting_for_slot'
order by q.job limit 1

-- name: key_availability
update trellis_queue set availability = ? where job = ?

-- name: key_available
update trellis_queue set availability = 'ready' where job = ? and availability = 'waiting_for_slot'

-- name: key_facts
-- What admission must know of a key: slots taken, jobs waiting without one, the oldest holder, the
-- newest and the oldest waiting job that was never claimed; jobs of callers' transactions, of which
-- none waits here.
select
  (select count(*) from trellis_key_slot s where s.key_hash = k.hash),
  (select count(*) from trellis_queue q
   where q.key_hash = k.hash and q.availability <> 'claimed' and not exists (
     select 1 from trellis_key_slot s where s.job = q.job and s.linger_until is null)),
  (select j.id
   from (select min(job) as job from trellis_key_slot
         where key_hash = k.hash and linger_until is null) s
   join trellis_job j on j.seq = s.job),
  (select j.id from trellis_queue q join trellis_job j on j.seq = q.job
   where q.key_hash = k.hash and q.availability <> 'claimed' and q.claims = 0 order by q.job desc limit 1),
  (select j.id from trellis_queue q join trellis_job j on j.seq = q.job
   where q.key_hash = k.hash and q.availability <> 'claimed' and q.claims = 0 order by q.job limit 1),
  0
from (select ? as hash) k

-- name: slot_free
delete from trellis_key_slot where id = ?

-- name: slot_linger
update trellis_key_slot set linger_until = ?, linger_boot = ? where id = ?

-- name: slot_of_job
select id from trellis_key_slot where job = ? and linger_until is null

-- name: slot_of_session
select id, key_hash, job from trellis_key_slot indexed by trellis_key_slot_linger
where linger_until is not null and session = ?

-- name: slot_overdue
select id, key_hash, job from trellis_key_slot
where linger_until is not null and (linger_boot <> ? or linger_until <= ?)

-- name: slot_stopped
select id, key_hash, job from trellis_key_slot indexed by trellis_key_slot_linger
where linger_until is not null and session = ? and token in (select value from json_each(?))

-- name: slot_take
insert into trellis_key_slot (key_hash, job) values (?, ?)

-- name: slot_unclaim
update trellis_key_slot
set session = null, token = null, linger_until = null, linger_boot = null
where id = ?
