delete from trellis.item where job = any($1::bigint[])
