update trellis_key_slot set linger_until = ? where id = ?
