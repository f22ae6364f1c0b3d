select id, key_hash, job from trellis_key_slot indexed by trellis_key_slot_linger
where linger_until is not null and session = ? and token = ?
