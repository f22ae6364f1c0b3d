-- A job with its head in one row, as programs read it.
create view trellis.record as
select
  j.seq, j.id, l.service, l.type, l.queue, j.payload, p.body as policy,
  coalesce(j.request_id, j.id) as request_id, j.traceparent, j.tracestate, l.priority,
  j.created_at, j.deadline_at, j.key, j.key_hash, j.tags, j.config, j.expect, j.schema_version,
  j.clone_of,
  coalesce(q.state, o.state)::text as state,
  coalesce(q.version, o.version) as version,
  coalesce(q.generation, o.generation) as generation,
  coalesce(q.attempt, o.attempt) as attempt,
  coalesce(q.claims, o.claims) as claims,
  coalesce(q.crashes, o.crashes) as crashes,
  coalesce(q.run_at, o.run_at) as run_at,
  q.session, q.token, q.claimed_at, q.asked_at,
  coalesce(q.blocked, false) as blocked,
  coalesce(q.suspect, false) as suspect,
  case when q.job is null then o.error else q.error end as error,
  o.finished_at,
  q.seen_at, q.park::text as park
from trellis.job j
join trellis.lane l on l.id = j.lane
join trellis.policy p on p.id = j.policy
left join trellis.queue q on q.job = j.seq
left join lateral (
  select * from trellis.outcome x
  where q.job is null and x.job = j.seq
  order by x.generation desc limit 1
) o on true;
