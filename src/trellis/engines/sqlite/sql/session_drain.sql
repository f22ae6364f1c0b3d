update trellis_session set draining = 1 where id = ? and ended_at is null
