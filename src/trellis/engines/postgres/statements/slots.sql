-- Key slots: held by a job, then by its attempt; handed over in the order of claims.

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
-- Give free slots of these keys to their waiting jobs, in the order of claims; the
-- transaction holds the keys' locks. A job gets one if fewer are taken, counting those before it, than
-- its own policy allows. The lanes of a key are found by stepping through the index; there are few,
-- however many jobs wait. Jobs of keys with a rate are left out; returns these keys. They have a rate by
-- the policy of the job, or by what is stored for the keys of its type.
with next as materialized (
  select k.key_hash, w.job, w.is_rated
  from (select distinct key_hash from unnest($1::text[]) n(key_hash)) k
  cross join lateral (
    select count(*) as held from trellis.key_slot s where s.key_hash = k.key_hash) h
  cross join lateral (
    select f.job, f.is_rated from (
      select x.job, x.is_rated,
        bool_and(not x.is_rated and h.held + x.place - 1 < x.active) over (order by x.place) as fits
      from (
        select q.job, p.active, p.is_rated or q.is_rated as is_rated,
          row_number() over (order by q.class, q.at, q.job) as place
        from (
          with recursive used(lane) as (
            (select x.lane from trellis.queue x
             where x.key_hash = k.key_hash order by x.lane limit 1)
            union all
            select (select x.lane from trellis.queue x
                    where x.key_hash = k.key_hash and x.lane > used.lane order by x.lane limit 1)
            from used where used.lane is not null)
          select w.job, case when s.aging is null then -l.priority else 0 end as class,
            w.rank - coalesce(l.priority * s.aging, 0) as at,
            exists (select 1 from trellis.job_limit m
                    where m.scope = 'key' and m.service = l.service and m.name = l.type) as is_rated
          from used join trellis.lane l on l.id = used.lane
          left join trellis.queue_setting s on s.service = '*' and s.queue = '*'
          cross join lateral (
            select x.job, coalesce(x.rank, x.run_at) as rank from trellis.queue x
            where x.key_hash = k.key_hash and x.lane = used.lane
              and x.availability in ('waiting_for_slot', 'unadmitted')
            order by coalesce(x.rank, x.run_at), x.job limit 100) w) q
        join trellis.job j on j.seq = q.job
        join trellis.policy p on p.id = j.policy) x) f
    where f.fits or f.is_rated) w),
-- Checked again where it is changed: a job that was waited for may have ended, or have its slot by now.
moved as (
  update trellis.queue q set availability = 'ready' from next n
  where not n.is_rated and q.job = n.job and q.availability in ('waiting_for_slot', 'unadmitted')
  returning q.job, q.key_hash),
taken as (
  insert into trellis.key_slot (key_hash, job) select key_hash, job from moved order by job)
select (select count(*) from moved),
  (select array_agg(distinct n.key_hash) from next n where n.is_rated)

-- name: key_lock
-- Keep other transactions from moving slots of these keys until this one ends. Taken before any row of
-- a keyed job is locked, in the same order everywhere.
select pg_advisory_xact_lock(hashtextextended('trellis/key/' || g.name, 0))
from (select name from unnest($1::text[]) n(name) order by name offset 0) g

-- name: key_availability
-- Of a waiting job; one of a tenant that has no rank yet waits for its promotion.
update trellis.queue
set availability = case when tenant is not null and rank is null then 'scheduled' else $1::text end::trellis.availability
where job = $2

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

-- name: slot_unclaimed
-- The slots of these keys with which no job has started; not those that a claim takes now.
select s.id, s.job from trellis.key_slot s join trellis.queue q on q.job = s.job
where s.key_hash = any($1::text[]) and s.token is null and s.linger_until is null
  and q.availability = 'ready'
order by s.job for update of q skip locked

-- name: slot_unclaim
update trellis.key_slot set session = null, token = null, linger_until = null where id = $1

-- name: key_held
select count(*) from trellis.key_slot where key_hash = $1

-- name: key_next
-- The next job of a key in the order of claims, its policy and the rate of the keys of its type; for
-- keys with a rate, of which jobs get their slots one by one. First is a job that has kept its slot
-- and waits for a token.
with recursive used(lane) as (
  (select x.lane from trellis.queue x where x.key_hash = $1 order by x.lane limit 1)
  union all
  select (select x.lane from trellis.queue x
          where x.key_hash = $1 and x.lane > used.lane order by x.lane limit 1)
  from used where used.lane is not null)
select w.job, w.has_slot, p.body, l.service, l.type, m.declared, m.override
from (
  select x.job, x.lane, coalesce(x.rank, x.run_at) as rank, true as has_slot
  from trellis.key_slot k join trellis.queue x on x.job = k.job
  where k.key_hash = $1 and k.linger_until is null and x.availability = 'waiting_for_slot'
  union all
  select y.job, used.lane, y.rank, false from used cross join lateral (
    select x.job, coalesce(x.rank, x.run_at) as rank from trellis.queue x
    where x.key_hash = $1 and x.lane = used.lane
      and x.availability in ('waiting_for_slot', 'unadmitted')
    order by coalesce(x.rank, x.run_at), x.job limit 1) y) w
join trellis.lane l on l.id = w.lane
left join trellis.queue_setting s on s.service = '*' and s.queue = '*'
left join trellis.job_limit m on m.scope = 'key' and m.service = l.service and m.name = l.type
join trellis.job j on j.seq = w.job
join trellis.policy p on p.id = j.policy
order by w.has_slot desc, case when s.aging is null then -l.priority else 0 end,
  w.rank - coalesce(l.priority * s.aging, 0), w.job
limit 1

-- name: slot_take
insert into trellis.key_slot (key_hash, job) values ($1, $2)
