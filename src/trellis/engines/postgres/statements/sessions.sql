-- Sessions: one lease row per worker process.

-- name: session_alive
select 1 from trellis.session where id = $1 and ended_at is null

-- name: session_drain
update trellis.session set draining = true where id = $1 and ended_at is null returning 1

-- name: session_end
update trellis.session set ended_at = $1 where id = $2 and ended_at is null

-- name: session_held
select q.job, q.token, q.asked_at is not null from trellis.queue q where q.session = $1 order by q.job

-- name: session_list
select s.id, s.name, s.host, s.pid, s.version, s.details, s.opened_at, s.renewed_at, s.lease,
  s.ended_at is null and s.lease_until <= trellis.clock(), s.ended_at,
  (select count(*) from trellis.queue q where q.session = s.id), s.busy, s.draining
from trellis.session s order by s.number desc

-- name: session_open
insert into trellis.session (
  id, name, host, pid, version, details, lease, lease_until, opened_at, renewed_at)
select $1, $2, $3, $4, $5, $6, $7::bigint, c.now + $7::bigint, c.now, c.now
from (select trellis.clock() as now) c
returning opened_at

-- name: session_reap
-- End a session whose lease is over; one that was renewed at the last moment lives on.
update trellis.session set ended_at = $2
where id = $1 and ended_at is null and lease_until <= $2 returning 1

-- name: session_renew
-- Extend the lease; null columns: the session is over.
with renewed as (
  update trellis.session s
  set lease_until = c.now + s.lease, renewed_at = c.now, busy = $2
  from (select trellis.clock() as now) c
  where s.id = $1 and s.ended_at is null
  returning s.draining)
select trellis.clock(), (select draining from renewed)
