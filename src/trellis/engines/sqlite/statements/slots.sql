-- Key slots: held by a job, then by its attempt; handed over in the order of claims.

-- name: key_held
select count(*) from trellis_key_slot where key_hash = ?

-- name: key_next
-- The next job of a key in the order of claims: the best of the first of each lane. The
-- lanes of the key are found by stepping through the index; there are few, however many jobs wait.
-- First is a job that has kept its slot and waits for a token. Last are the policy of the job and the
-- rate of the keys of its type.
with recursive k(hash) as (select ?),
used(lane) as (
  select (select q.lane from trellis_queue q where q.key_hash = k.hash order by q.lane limit 1)
  from k
  union all
  select (select q.lane from trellis_queue q
          where q.key_hash = k.hash and q.lane > used.lane order by q.lane limit 1)
  from used, k where used.lane is not null),
waiting(job, has_slot) as (
  select (
    select x.job from trellis_queue x
    where x.key_hash = k.hash and x.lane = used.lane and x.availability = 'waiting_for_slot'
    order by coalesce(x.rank, x.run_at), x.job limit 1), 0
  from used cross join k
  union all
  select s.job, 1 from k
  cross join trellis_key_slot s on s.key_hash = k.hash and s.linger_until is null
  cross join trellis_queue x on x.job = s.job and x.availability = 'waiting_for_slot')
select q.job, g.has_slot, j.policy, l.service, l.type, m.declared, m.override
from waiting g
cross join trellis_queue q on q.job = g.job
cross join trellis_lane l on l.id = q.lane
cross join trellis_job j on j.seq = q.job
left join trellis_queue_setting s on s.service = '*' and s.queue = '*'
left join trellis_job_limit m on m.scope = 'key' and m.service = l.service and m.name = l.type
order by g.has_slot desc, case when s.aging is null then -l.priority else 0 end,
  coalesce(q.rank, q.run_at) - coalesce(l.priority * s.aging, 0), q.job
limit 1

-- name: key_availability
-- Of a waiting job; one of a tenant that has no rank yet waits for its promotion.
update trellis_queue
set availability = case when tenant is not null and rank is null then 'scheduled' else ? end
where job = ?

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

-- name: slot_unclaimed
-- The slots of these keys with which no job has started.
select s.id, s.job from trellis_key_slot s cross join trellis_queue q on q.job = s.job
where s.key_hash in (select value from json_each(?)) and s.token is null
  and s.linger_until is null and q.availability = 'ready'
order by s.job

-- name: slot_unclaim
update trellis_key_slot
set session = null, token = null, linger_until = null, linger_boot = null
where id = ?
