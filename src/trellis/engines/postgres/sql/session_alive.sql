select 1 from trellis.session where id = $1 and ended_at is null
