delete from trellis.event where job = any($1::bigint[])
