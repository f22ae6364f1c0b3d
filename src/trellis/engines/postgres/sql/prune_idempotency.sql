delete from trellis.idempotency where job = any($1::bigint[])
