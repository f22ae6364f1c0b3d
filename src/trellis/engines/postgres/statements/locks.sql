-- Locks: leased rows, valid while their session and attempt are.

-- name: lock_free
delete from trellis.lock where name = $1 and session = $2 and token = $3 returning 1

-- name: lock_gate
-- Only one transaction at a time may request a lock of this name.
select pg_advisory_xact_lock(hashtextextended('trellis/lock/' || $1::text, 0))

-- name: lock_holder
-- A lock's row counts while its session is alive and, if it names one, its attempt is current; and
-- for a while longer if that attempt's handler may still run. $2: when; null is now.
select k.name, k.session, k.token, coalesce(s.name, ''), j.id, k.taken_at,
  k.linger_until is not null
from (select coalesce($2::bigint, trellis.clock()) as now) c
cross join trellis.lock k
-- include: lock_is_held
  and k.name = $1

-- name: lock_linger
update trellis.lock set linger_until = $1, job = $2 where session = $3 and token = $4

-- fragment: lock_is_held
left join trellis.session s on s.id = k.session
left join trellis.queue q on q.session = k.session and q.token = k.token
left join trellis.job j on j.seq = coalesce(k.job, q.job)
where (k.linger_until > c.now
  or (k.linger_until is null and s.ended_at is null and s.lease_until > c.now
      and (k.token = 0 or q.job is not null)))

-- name: lock_list
-- $1: when; null is now.
select k.name, k.session, k.token, coalesce(s.name, ''), j.id, k.taken_at
from (select coalesce($1::bigint, trellis.clock()) as now) c
cross join trellis.lock k
-- include: lock_is_held
order by k.name collate "C"

-- name: lock_of_session
-- What lingers belongs to a handler that may still run, and keeps lingering.
delete from trellis.lock where session = $1 and linger_until is null

-- name: lock_outlived
-- Locks of attempts that are over: these names may never be requested again.
delete from trellis.lock k
where k.session = $1 and k.token <> 0 and k.linger_until is null
  and not exists (
    select 1 from trellis.queue q where q.session = k.session and q.token = k.token)

-- name: lock_overdue
delete from trellis.lock where linger_until is not null and linger_until <= $1 returning 1

-- name: lock_put
insert into trellis.lock (name, session, token, taken_at) values ($1, $2, $3, $4)
on conflict (name) do update
set session = excluded.session, token = excluded.token, taken_at = excluded.taken_at,
    linger_until = null, job = null

-- name: lock_reaped
delete from trellis.lock where session = $1

-- name: lock_stopped
delete from trellis.lock where session = $1 and token = any($2::bigint[]) and linger_until is not null
