delete from trellis.job where seq = any($1::bigint[])
