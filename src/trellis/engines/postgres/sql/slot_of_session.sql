select id, key_hash, job from trellis.key_slot where linger_until is not null and session = $1
