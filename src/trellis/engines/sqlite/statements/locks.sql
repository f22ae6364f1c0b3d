-- Locks: leased rows, valid while their session and attempt are.

-- name: lock_free
delete from trellis_lock where name = ? and session = ? and token = ?

-- name: lock_holder
-- A lock's row counts while its session is alive and, if it names one, its attempt is current; and
-- for a while longer if that attempt's handler may still run.
with given (name, boot, moment) as (values (?, ?, ?))
select k.name, k.session, k.token, coalesce(s.name, ''), j.id, k.taken_at, k.linger_until is not null
from given g
join trellis_lock k on k.name = g.name
left join trellis_session s on s.id = k.session
left join trellis_queue q on q.session = k.session and q.token = k.token
left join trellis_job j on j.seq = coalesce(k.job, q.job)
where (k.linger_boot = g.boot and k.linger_until > g.moment)
  or (k.linger_until is null and s.ended_at is null and s.boot_id = g.boot
      and s.lease_until > g.moment and (k.token = 0 or q.job is not null))

-- name: lock_linger
update trellis_lock set linger_until = ?, linger_boot = ?, job = ? where session = ? and token = ?

-- name: lock_list
with given (boot, moment) as (values (?, ?))
select k.name, k.session, k.token, coalesce(s.name, ''), j.id, k.taken_at
from given g
cross join trellis_lock k
left join trellis_session s on s.id = k.session
left join trellis_queue q on q.session = k.session and q.token = k.token
left join trellis_job j on j.seq = coalesce(k.job, q.job)
where (k.linger_boot = g.boot and k.linger_until > g.moment)
  or (k.linger_until is null and s.ended_at is null and s.boot_id = g.boot
      and s.lease_until > g.moment and (k.token = 0 or q.job is not null))
order by k.name

-- name: lock_of_session
-- What lingers belongs to a handler that may still run, and keeps lingering.
delete from trellis_lock where session = ? and linger_until is null

-- name: lock_outlived
-- Locks of attempts that are over: these names may never be requested again.
delete from trellis_lock
where session = ? and token <> 0 and linger_until is null
  and not exists (
    select 1 from trellis_queue q
    where q.session = trellis_lock.session and q.token = trellis_lock.token)

-- name: lock_overdue
delete from trellis_lock
where linger_until is not null and (linger_boot <> ? or linger_until <= ?)

-- name: lock_is_overdue
select 1 from trellis_lock
where linger_until is not null and (linger_boot <> ? or linger_until <= ?)

-- name: lock_put
insert or replace into trellis_lock (name, session, token, taken_at) values (?, ?, ?, ?)

-- name: lock_reaped
delete from trellis_lock where session = ?

-- name: lock_stopped
delete from trellis_lock where session = ? and token in (select value from json_each(?)) and linger_until is not null
