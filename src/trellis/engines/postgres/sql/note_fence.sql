-- Those of these jobs that have an attempt: its fence, and the job's definition where somebody
-- watches for silence. Their rows stay as they are until this transaction ends.
select q.job, q.session, q.token, p.watch is not null
from unnest($1::bigint[]) n(job)
cross join lateral (
  select x.job, x.session, x.token from trellis.queue x
  where x.job = n.job and x.session is not null for update) q
join trellis.job j on j.seq = q.job
join trellis.policy p on p.id = j.policy
