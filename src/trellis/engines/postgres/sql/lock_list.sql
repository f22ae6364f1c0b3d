select k.name, k.session, k.token, coalesce(s.name, ''), j.id, k.taken_at
from trellis.lock k
left join trellis.session s on s.id = k.session
left join trellis.queue q on q.session = k.session and q.token = k.token
left join trellis.job j on j.seq = coalesce(k.job, q.job)
cross join (select trellis.clock() as now) c
where k.linger_until > c.now
  or (k.linger_until is null and s.ended_at is null and s.lease_until > c.now
      and (k.token = 0 or q.job is not null))
order by k.name collate "C"
