delete from trellis_key_slot where id = ?
