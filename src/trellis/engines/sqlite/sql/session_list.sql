select s.id, s.name, s.host, s.pid, s.version, s.details, s.opened_at, s.renewed_at, s.lease,
       s.ended_at is null and (s.boot_id <> ? or s.lease_until <= ?), s.ended_at,
       (select count(*) from trellis_queue q where q.session = s.id), s.busy, s.draining
from trellis_session s order by s.number desc
