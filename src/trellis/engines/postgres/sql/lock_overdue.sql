delete from trellis.lock where linger_until is not null and linger_until <= $1 returning 1
