update trellis_session set lease_until = ?, boot_id = ?, renewed_at = ?, busy = ? where id = ?
