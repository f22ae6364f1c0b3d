delete from trellis_lock where session = ? and token = ? and linger_until is not null
