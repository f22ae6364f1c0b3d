select id, key_hash, job from trellis.key_slot
where linger_until is not null and linger_until <= $1 limit $2
