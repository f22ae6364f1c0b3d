select k.name, k.session, k.token, coalesce(s.name, ''), j.id, k.taken_at
from trellis_lock k
left join trellis_session s on s.id = k.session
left join trellis_queue q on q.session = k.session and q.token = k.token
left join trellis_job j on j.seq = coalesce(k.job, q.job)
where ((k.linger_boot = ? and k.linger_until > ?)
  or (k.linger_until is null and s.ended_at is null and s.boot_id = ? and s.lease_until > ?
      and (k.token = 0 or q.job is not null)))
order by k.name
