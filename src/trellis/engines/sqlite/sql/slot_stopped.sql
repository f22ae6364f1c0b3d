select id, key_hash from trellis_key_slot
where session = ? and token = ? and linger_until is not null
