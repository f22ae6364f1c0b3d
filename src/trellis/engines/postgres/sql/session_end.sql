update trellis.session set ended_at = $1 where id = $2 and ended_at is null
