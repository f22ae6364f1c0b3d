insert into trellis.log (job, at, claim, level, message, fields)
select d.job, d.at, d.claim, d.level, d.message, d.fields
from unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::text[], $6::text[])
  with ordinality d(job, at, claim, level, message, fields, place)
order by d.place
