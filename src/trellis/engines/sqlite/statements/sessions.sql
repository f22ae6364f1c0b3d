-- Sessions: one lease row per worker process.

-- name: session_names
-- The workers of these sessions, removed ones too.
select b.value, coalesce(s.name, p.name), coalesce(s.host, p.host), coalesce(s.pid, p.pid)
from json_each(?) b
left join trellis_session s on s.id = b.value
left join trellis_past_session p on p.id = b.value
where coalesce(s.name, p.name) is not null

-- name: session_draining
select draining, name from trellis_session where id = ? and ended_at is null

-- name: session_drain
update trellis_session set draining = 1 where id = ?

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
       (select count(*) from trellis_queue q where q.session = s.id), s.report, s.draining
from trellis_session s order by s.number desc

-- name: session_open
insert into trellis_session (
  id, name, host, pid, version, details, lease, opened_at, renewed_at, lease_until, boot_id
)
select id, name, host, pid, version, details, lease, now, now, lease_until, boot_id
from (select ? as id, ? as name, ? as host, ? as pid, ? as version, ? as details, ? as lease,
             ? as now, ? as lease_until, ? as boot_id)

-- name: session_renew
update trellis_session
set lease_until = given.moment + lease, boot_id = given.boot, renewed_at = given.now,
    report = given.report
from (select ? as session, ? as report, ? as now, ? as boot, ? as moment) given
where id = given.session and ended_at is null

-- name: session_reap
-- End a session whose lease is over; one that was renewed in the meantime stays.
update trellis_session set ended_at = given.now
from (select ? as session, ? as now, ? as boot, ? as moment) given
where id = given.session and ended_at is null
  and (boot_id <> given.boot or lease_until <= given.moment)
