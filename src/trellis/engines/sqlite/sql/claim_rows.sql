-- The jobs of a list of numbers, with what a claim must know of them.
select
  q.job, j.id, j.lane, j.policy, j.payload, j.created_at, coalesce(j.request_id, j.id), j.traceparent, j.tracestate,
  j.deadline_at, j.key, j.key_hash, j.tags, j.config, j.expect, j.schema_version, j.clone_of,
  q.version, q.generation, q.attempt, q.claims, q.crashes, q.run_at, q.suspect, q.error
from json_each(?) picked
cross join trellis_queue q on q.job = picked.value
cross join trellis_job j on j.seq = q.job
