-- Which of these ids are here, and whether as the same jobs; one that was here and was removed is.
-- $1 ids, $2 services, $3 queues, $4 types, $5 priorities, $6 moments of creation, $7 payloads.
select n.id, (l.service, l.queue, l.type, l.priority, j.created_at, j.payload)
  = (n.service, n.queue, n.type, n.priority, n.created_at, n.payload)
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int[], $6::bigint[], $7::text[])
  n(id, service, queue, type, priority, created_at, payload)
join trellis.job j on j.id = n.id join trellis.lane l on l.id = j.lane
union all
select n.id, true from unnest($1::text[]) n(id) join trellis.removal r on r.id = n.id
where not exists (select 1 from trellis.job j where j.id = n.id)
