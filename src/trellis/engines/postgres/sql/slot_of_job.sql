select id from trellis.key_slot where job = $1 and linger_until is null
