select id, key_hash from trellis_key_slot where linger_until is not null and linger_until <= ?
