-- A lock's row counts while its session is alive and, if it names one, its attempt is current; and
-- for a while longer if that attempt's handler may still run. $2: when; null is now.
select k.name, k.session, k.token, coalesce(s.name, ''), j.id, k.taken_at,
  k.linger_until is not null
from (select coalesce($2::bigint, trellis.clock()) as now) c
cross join trellis.lock k
left join trellis.session s on s.id = k.session
left join trellis.queue q on q.session = k.session and q.token = k.token
left join trellis.job j on j.seq = coalesce(k.job, q.job)
where k.name = $1 and (k.linger_until > c.now
  or (k.linger_until is null and s.ended_at is null and s.lease_until > c.now
      and (k.token = 0 or q.job is not null)))
