-- Extend the lease; null columns: the session is over.
with renewed as (
  update trellis.session s
  set lease_until = c.now + s.lease, renewed_at = c.now, busy = $2
  from (select trellis.clock() as now) c
  where s.id = $1 and s.ended_at is null
  returning s.draining)
select trellis.clock(), (select draining from renewed)
