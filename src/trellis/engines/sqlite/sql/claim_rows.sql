-- The jobs of a list of numbers, with what a claim must know of them, as one row: a thread must ask
-- for the interpreter after every row, and may wait longer for it than for SQLite. What all jobs
-- have stands in `facts`, one list each; the payloads follow one another, with their lengths in the
-- facts; what few jobs have stands in `extras`, by number.
select
  json_group_array(json_array(
    q.job, j.id, j.lane, j.policy, length(j.payload), j.created_at, j.traceparent,
    j.schema_version, q.version, q.generation, q.attempt, q.claims, q.crashes, q.run_at,
    q.suspect)) as facts,
  group_concat(j.payload, '') as payloads,
  json_group_array(distinct j.lane) as lanes,
  json_group_array(distinct j.policy) as policies,
  json_group_object(q.job, json_array(
    j.request_id, j.tracestate, j.deadline_at, j.key, j.key_hash, j.tags, j.config, j.expect,
    j.clone_of, q.error)) filter (
      where coalesce(
        j.request_id, j.tracestate, j.deadline_at, j.key, j.key_hash, j.tags, j.config, j.expect,
        j.clone_of, q.error) is not null) as extras
from json_each(?) picked
cross join trellis_queue q on q.job = picked.value
cross join trellis_job j on j.seq = q.job
