select s.id, s.name, s.host, s.pid, s.version, s.details, s.opened_at, s.renewed_at, s.lease,
  s.ended_at is null and s.lease_until <= trellis.clock(), s.ended_at,
  (select count(*) from trellis.queue q where q.session = s.id), s.busy, s.draining
from trellis.session s order by s.number desc
