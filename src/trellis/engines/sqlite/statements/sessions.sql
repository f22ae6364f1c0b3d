-- Sessions: one lease row per worker process.

-- name: session_alive
select 1 from trellis_session
where id = ? and ended_at is null and boot_id = ? and lease_until > ?

-- name: session_drain
update trellis_session set draining = 1 where id = ? and ended_at is null

-- name: session_end
update trellis_session set ended_at = ? where id = ? and ended_at is null

-- name: session_held
select r.* from trellis_queue h join trellis_record r on r.seq = h.job
where h.session = ? order by h.job

-- name: session_list
select s.id, s.name, s.host, s.pid, s.version, s.details, s.opened_at, s.renewed_at, s.lease,
       s.ended_at is null and (s.boot_id <> ? or s.lease_until <= ?), s.ended_at,
       (select count(*) from trellis_queue q where q.session = s.id), s.busy, s.draining
from trellis_session s order by s.number desc

-- name: session_open
insert into trellis_session (
  id, name, host, pid, version, details, lease, lease_until, boot_id, opened_at, renewed_at
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: session_renew
update trellis_session set lease_until = ?, boot_id = ?, renewed_at = ?, busy = ? where id = ?
