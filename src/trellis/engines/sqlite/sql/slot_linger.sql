update trellis_key_slot set linger_until = ?, linger_boot = ? where id = ?
