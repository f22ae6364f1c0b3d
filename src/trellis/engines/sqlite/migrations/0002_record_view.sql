-- A job with its head in one row: the documented way to read jobs with SQL.
create view trellis_record as
select
  j.seq, j.id, l.service, l.type, l.queue, j.payload, p.body as policy,
  coalesce(j.request_id, j.id) as request_id, j.traceparent, j.tracestate, l.priority, j.created_at, j.deadline_at,
  j.key, j.key_hash, j.tags, j.config, j.expect, j.schema_version, j.clone_of,
  coalesce(q.state, o.state) as state,
  coalesce(q.version, o.version) as version,
  coalesce(q.generation, o.generation) as generation,
  coalesce(q.attempt, o.attempt) as attempt,
  coalesce(q.claims, o.claims) as claims,
  coalesce(q.crashes, o.crashes) as crashes,
  coalesce(q.run_at, o.run_at) as run_at,
  q.session, q.token, q.claimed_at, q.asked_at,
  coalesce(q.blocked, 0) as blocked,
  coalesce(q.suspect, 0) as suspect,
  case when q.job is null then o.error else q.error end as error,
  o.finished_at,
  q.seen_at, q.park
from trellis_job j
join trellis_lane l on l.id = j.lane
join trellis_policy p on p.id = j.policy
left join trellis_queue q on q.job = j.seq
left join trellis_outcome o
  on q.job is null and o.job = j.seq
 and o.generation = (select max(x.generation) from trellis_outcome x where x.job = j.seq);
