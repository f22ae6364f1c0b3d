insert into trellis.session (
  id, name, host, pid, version, details, lease, lease_until, opened_at, renewed_at)
select $1, $2, $3, $4, $5, $6, $7::bigint, c.now + $7::bigint, c.now, c.now
from (select trellis.clock() as now) c
returning opened_at
