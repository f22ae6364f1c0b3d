insert into trellis.item (job, name, status, detail)
select * from unnest($1::bigint[], $2::text[], $3::text[], $4::text[])
