-- What lingers belongs to a handler that may still run, and lingers on.
delete from trellis_lock where session = ? and linger_until is null
