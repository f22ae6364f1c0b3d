insert into trellis.idempotency (job, mark) select * from unnest($1::bigint[], $2::text[])
