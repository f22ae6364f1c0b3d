-- Those of these jobs that wait or run: the fence, the state, and whether somebody watches for
-- silence. Their rows stay as they are until this transaction ends.
select q.job, q.session, q.token, p.watch is not null, q.attempt, q.state::text
from unnest($1::bigint[]) n(job)
cross join lateral (
  select x.job, x.session, x.token, x.attempt, x.state from trellis.queue x
  where x.job = n.job for update) q
join trellis.job j on j.seq = q.job
join trellis.policy p on p.id = j.policy
