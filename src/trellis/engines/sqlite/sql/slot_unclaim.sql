update trellis_key_slot
set session = null, token = null, linger_until = null, linger_boot = null
where id = ?
