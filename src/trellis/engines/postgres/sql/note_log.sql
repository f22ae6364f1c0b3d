insert into trellis.log (job, at, claim, level, message, fields)
select job, $2, claim, level, message, fields
from unnest($1::bigint[], $3::int[], $4::text[], $5::text[], $6::text[])
  n(job, claim, level, message, fields)
