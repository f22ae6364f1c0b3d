-- Sessions: one lease row per worker process.

-- name: session_names
-- The workers of these sessions, removed ones too.
select b.value, coalesce(s.name, p.name), coalesce(s.host, p.host), coalesce(s.pid, p.pid)
from unnest($1::bigint[]) b(value)
left join trellis.session s on s.id = b.value
left join trellis.past_session p on p.id = b.value
where coalesce(s.name, p.name) is not null

-- name: session_draining
select draining, name from trellis.session where id = $1 and ended_at is null for update

-- name: session_drain
update trellis.session set draining = true where id = $1

-- name: session_end
update trellis.session set ended_at = $1 where id = $2 and ended_at is null

-- name: session_held
-- Whether the session drains, beside each job it holds: number, token, whether a cancel was asked for.
select s.draining, q.job, q.token, q.asked_at is not null
from trellis.session s left join trellis.queue q on q.session = $1
where s.id = $1 order by q.job

-- name: session_list
-- $1: when; null is now.
select s.id, s.name, s.host, s.pid, s.version, s.details, s.opened_at, s.renewed_at, s.lease,
  s.ended_at is null and s.lease_until <= coalesce($1::bigint, trellis.clock()), s.ended_at,
  (select count(*) from trellis.queue q where q.session = s.id), s.report, s.draining
from trellis.session s order by s.number desc

-- name: session_open
insert into trellis.session (
  id, name, host, pid, version, details, lease, opened_at, renewed_at, lease_until
) values ($1, $2, $3, $4, $5, $6, $7, $8, $8, $9)

-- name: session_reap
-- End a session whose lease is over; one that was renewed in the meantime stays.
update trellis.session set ended_at = $2
where id = $1 and ended_at is null and lease_until <= $3 returning 1

-- name: session_renew
update trellis.session set lease_until = $4 + lease, renewed_at = $3, report = $2
where id = $1 and ended_at is null returning 1
