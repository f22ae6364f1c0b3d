update trellis_key_slot set session = ?, token = ?
where job = ? and token is null and linger_until is null
