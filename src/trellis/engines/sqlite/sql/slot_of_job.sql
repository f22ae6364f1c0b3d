select id from trellis_key_slot where job = ? and linger_until is null
