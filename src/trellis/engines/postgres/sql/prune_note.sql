delete from trellis.note where job = any($1::bigint[])
