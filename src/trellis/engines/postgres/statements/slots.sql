-- Key slots: held by a job, then by its attempt; handed over in creation order.

-- name: caller_admit
-- Let keyed jobs that were created in callers' transactions wait for their slots; one that another
-- transaction changes now is left for the next time. Returns the keys of those that were admitted.
update trellis.queue q set availability = 'waiting_for_slot'
from (
  select x.ctid as tid from trellis.queue x
  where x.job = any($1::bigint[]) and x.availability = 'unadmitted' for update skip locked) g
where q.ctid = g.tid
returning q.key_hash

-- name: caller_waiting
select job, key_hash from trellis.queue where availability = 'unadmitted' order by job limit $1

-- name: key_facts
-- What admission must know of a key: slots taken, jobs waiting without one, the oldest holder, the
-- newest and the oldest waiting job that was never claimed; and how many jobs of callers' transactions
-- have yet to be admitted.
select
  (select count(*) from trellis.key_slot s where s.key_hash = $1),
  (select count(*) from trellis.queue q
   where q.key_hash = $1 and q.availability <> 'claimed' and not exists (
     select 1 from trellis.key_slot s where s.job = q.job and s.linger_until is null)),
  (select j.id from trellis.key_slot s join trellis.job j on j.seq = s.job
   where s.key_hash = $1 and s.linger_until is null order by s.job limit 1),
  (select j.id from trellis.queue q join trellis.job j on j.seq = q.job
   where q.key_hash = $1 and q.availability <> 'claimed' and q.claims = 0 order by q.job desc limit 1),
  (select j.id from trellis.queue q join trellis.job j on j.seq = q.job
   where q.key_hash = $1 and q.availability <> 'claimed' and q.claims = 0 order by q.job limit 1),
  (select count(*) from trellis.queue q where q.key_hash = $1 and q.availability = 'unadmitted')

-- name: key_hand_over
-- Give free slots of these keys to their waiting jobs, in creation order; the transaction holds the
-- keys' locks. A job gets one if fewer are taken, counting those before it, than its own policy allows.
with next as materialized (
  select k.key_hash, w.job
  from (select distinct key_hash from unnest($1::text[]) n(key_hash)) k
  cross join lateral (
    select count(*) as held from trellis.key_slot s where s.key_hash = k.key_hash) h
  cross join lateral (
    select f.job from (
      select x.job, bool_and(h.held + x.place - 1 < x.active) over (order by x.job) as fits
      from (
        select q.job, p.active, row_number() over (order by q.job) as place
        from (select job from trellis.queue
              where key_hash = k.key_hash and availability in ('waiting_for_slot', 'unadmitted') order by job limit 100) q
        join trellis.job j on j.seq = q.job
        join trellis.policy p on p.id = j.policy) x) f
    where f.fits) w),
-- Checked again where it is changed: a job that was waited for may have ended, or have its slot by now.
moved as (
  update trellis.queue q set availability = 'ready' from next n
  where q.job = n.job and q.availability in ('waiting_for_slot', 'unadmitted')
  returning q.job, q.key_hash),
taken as (
  insert into trellis.key_slot (key_hash, job) select key_hash, job from moved order by job)
select count(*) from moved

-- name: key_lock
-- Keep other transactions from moving slots of these keys until this one ends. Taken before any row of
-- a keyed job is locked, in the same order everywhere.
select pg_advisory_xact_lock(hashtextextended('trellis/key/' || g.name, 0))
from (select name from unnest($1::text[]) n(name) order by name offset 0) g

-- name: key_availability
update trellis.queue set availability = $1::text::trellis.availability where job = $2

-- name: key_available
update trellis.queue set availability = 'ready' where job = $1 and availability = 'waiting_for_slot'

-- name: slot_free
delete from trellis.key_slot where id = $1

-- name: slot_free_jobs
-- Free the slots that these jobs hold for an attempt.
delete from trellis.key_slot where job = any($1::bigint[]) and linger_until is null

-- name: slot_linger
update trellis.key_slot set linger_until = $1 where id = $2

-- name: slot_of_job
select id from trellis.key_slot where job = $1 and linger_until is null

-- name: slot_of_session
select id, key_hash, job from trellis.key_slot where linger_until is not null and session = $1

-- name: slot_overdue
select id, key_hash, job from trellis.key_slot
where linger_until is not null and linger_until <= $1

-- name: slot_stopped
select id, key_hash, job from trellis.key_slot
where linger_until is not null and session = $1 and token = any($2::bigint[])

-- name: slot_unclaim
update trellis.key_slot set session = null, token = null, linger_until = null where id = $1
