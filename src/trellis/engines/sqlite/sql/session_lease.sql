select lease, draining from trellis_session where id = ? and ended_at is null
