insert into trellis.note (job, claim, began_at, seen_at, progress, phase)
select * from unnest($1::bigint[], $2::int[], $3::bigint[], $4::bigint[], $5::text[], $6::text[])
