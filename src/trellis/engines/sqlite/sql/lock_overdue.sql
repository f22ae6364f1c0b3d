select name, session, token from trellis_lock
where linger_until is not null and (linger_until <= ? or linger_boot <> ?)
