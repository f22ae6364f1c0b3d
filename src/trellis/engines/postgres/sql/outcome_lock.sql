-- How these jobs ended last; nobody revives, closes or removes them until this transaction ends.
select o.job, o.attempt, o.state::text
from unnest($1::bigint[]) n(job)
cross join lateral (
  select x.job, x.attempt, x.state from trellis.outcome x
  where x.job = n.job order by x.generation desc limit 1 for update) o
