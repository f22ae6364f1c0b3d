-- What lingers belongs to a handler that may still run, and lingers on.
delete from trellis.lock where session = $1 and linger_until is null
