update trellis.key_slot set session = null, token = null, linger_until = null where id = $1
