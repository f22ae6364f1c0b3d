update trellis_key_slot set session = null, token = null where id = ?
