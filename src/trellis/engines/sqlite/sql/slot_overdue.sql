select id, key_hash, job from trellis_key_slot
where linger_until is not null and (linger_until <= ? or linger_boot <> ?)
