delete from trellis.outcome where job = any($1::bigint[])
