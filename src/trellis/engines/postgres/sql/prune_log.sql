delete from trellis.log where job = any($1::bigint[])
