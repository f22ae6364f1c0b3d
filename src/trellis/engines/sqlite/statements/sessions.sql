-- Sessions: one lease row per worker process.

-- name: session_drain
update trellis_session set draining = 1 where id = ? and ended_at is null

-- name: session_end
update trellis_session set ended_at = ? where id = ? and ended_at is null

-- name: session_held
-- Whether the session drains, beside each job it holds: number, token, whether a cancel was asked for.
select s.draining, q.job, q.token, q.asked_at is not null
from trellis_session s left join trellis_queue q on q.session = s.id
where s.id = ? order by q.job

-- name: session_list
select s.id, s.name, s.host, s.pid, s.version, s.details, s.opened_at, s.renewed_at, s.lease,
       s.ended_at is null and (s.boot_id <> ? or s.lease_until <= ?), s.ended_at,
       (select count(*) from trellis_queue q where q.session = s.id), s.busy, s.draining
from trellis_session s order by s.number desc

-- name: session_open
insert into trellis_session (
  id, name, host, pid, version, details, lease, opened_at, renewed_at, lease_until, boot_id
) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9, ?10)

-- name: session_renew
-- ?1 session, ?2 busy, ?3 now, ?4 boot, ?5 time since then.
update trellis_session set lease_until = ?5 + lease, boot_id = ?4, renewed_at = ?3, busy = ?2
where id = ?1 and ended_at is null

-- name: session_reap
-- End a session whose lease is over; one that was renewed in the meantime stays.
-- ?1 session, ?2 now, ?3 boot, ?4 time since then.
update trellis_session set ended_at = ?2
where id = ?1 and ended_at is null and (boot_id <> ?3 or lease_until <= ?4)
