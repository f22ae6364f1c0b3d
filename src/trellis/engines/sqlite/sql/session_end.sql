update trellis_session set ended_at = ? where id = ? and ended_at is null
