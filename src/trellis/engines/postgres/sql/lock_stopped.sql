delete from trellis.lock where session = $1 and token = any($2::bigint[]) and linger_until is not null
