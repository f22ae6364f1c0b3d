-- A live job has a place in the queue; an ended one has none.
select j.id, j.seq, q.job is not null, o.state::text
from unnest($1::text[]) n(id)
join trellis.job j on j.id = n.id
left join trellis.queue q on q.job = j.seq
left join lateral (
  select x.state from trellis.outcome x where x.job = j.seq order by x.generation desc limit 1) o on true
