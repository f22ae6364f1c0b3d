select count(*) from trellis_key_slot where key_hash = ?
