insert into trellis_session (
  id, name, host, pid, version, details, lease, lease_until, boot_id, opened_at, renewed_at
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
