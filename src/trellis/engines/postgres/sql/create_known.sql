-- What is already there of these ids and marks: kind (0 id, 1 idempotency, 2 dedupe), the name,
-- the job's id, and what it is.
select 0, j.id, j.id, l.service, l.type, j.payload
from unnest($1::text[]) n(id) join trellis.job j on j.id = n.id join trellis.lane l on l.id = j.lane
union all
select 1, i.mark, j.id, null, null, j.payload
from unnest($2::text[]) n(mark)
join trellis.idempotency i on i.mark = n.mark join trellis.job j on j.seq = i.job
union all
select 2, q.dedupe, j.id, null, null, null
from unnest($3::text[]) n(mark)
join trellis.queue q on q.dedupe = n.mark join trellis.job j on j.seq = q.job
