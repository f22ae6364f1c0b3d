select 1 from trellis_session
where id = ? and ended_at is null and boot_id = ? and lease_until > ?
