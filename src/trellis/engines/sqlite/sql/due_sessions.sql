select id from trellis_session
where ended_at is null and (boot_id <> ? or lease_until <= ?)
order by number limit ?
