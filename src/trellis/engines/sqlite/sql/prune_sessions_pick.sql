select id from trellis_session
where ended_at is not null and ended_at <= ? order by ended_at, number limit ?
