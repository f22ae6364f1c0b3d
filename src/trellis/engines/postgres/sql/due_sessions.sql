select id from trellis.session
where ended_at is null and lease_until <= $1 order by number limit $2
