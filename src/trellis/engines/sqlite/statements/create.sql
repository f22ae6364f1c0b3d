-- Storing new jobs.

-- name: create_counter
select value from trellis_meta where name = 'last_job'

-- name: create_counter_set
update trellis_meta set value = ? where name = 'last_job'

-- name: create_event_alike
insert into trellis_event (job, version, kind, state, at, attempt)
select seq, ?, ?, ?, ?, ? from trellis_job where seq > ?

-- name: create_idempotency
insert into trellis_idempotency (mark, job) values (?, ?)

-- name: create_job
-- A job that uses none of the optional columns: naming them all would cost more than the insert.
insert into trellis_job (
  seq, id, lane, policy, payload, created_at, traceparent, schema_version
) values (?, ?, ?, ?, ?, ?, ?, 1)

-- name: create_job_full
insert into trellis_job (
  seq, id, lane, policy, payload, created_at, request_id, traceparent, tracestate, deadline_at,
  key, key_hash, tags, config, expect, schema_version, clone_of, dedupe, dedupe_while, dedupe_until,
  attempts, timeout, relations
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: create_known
-- Which of these ids and marks are already stored: kind (0 id, 1 idempotency, 2 dedupe by its queue
-- row, 4 dedupe by its period), the name, the job's id, and what it is. And the queues that accept
-- nothing new: kind 3, service, queue. Parameters: ids, idempotency marks, dedupe marks, now.
with wanted as (select ? as ids, ? as once, ? as marks, ? as now)
select 0, j.id, j.id, l.service, l.type, j.payload
from wanted, json_each(wanted.ids) n
cross join trellis_job j on j.id = n.value
join trellis_lane l on l.id = j.lane
union all
select 1, i.mark, j.id, null, null, j.payload
from wanted, json_each(wanted.once) n
cross join trellis_idempotency i on i.mark = n.value
join trellis_job j on j.seq = i.job
union all
select 2, q.dedupe, j.id, null, null, null
from wanted, json_each(wanted.marks) n
cross join trellis_queue q on q.dedupe = n.value
join trellis_job j on j.seq = q.job
union all
select 4, j.dedupe, j.id, null, null, null
from wanted, json_each(wanted.marks) n
cross join trellis_job j on j.dedupe = n.value and j.dedupe_until > wanted.now
union all
select 3, s.service, s.queue, null, null, null from trellis_queue_setting s where s.draining

-- name: create_queue
insert into trellis_queue (
  job, lane, availability, state, version, generation, attempt, claims, crashes, run_at, blocked, suspect
) values (?, ?, ?, ?, ?, ?, 0, ?, 0, ?, 0, 0)

-- name: create_queue_alike
-- The queue rows of new jobs that differ in nothing but number and lane.
insert into trellis_queue (
  job, lane, availability, state, version, generation, attempt, claims, crashes, run_at, blocked, suspect
)
select seq, lane, ?, ?, ?, ?, 0, ?, 0, ?, 0, 0 from trellis_job where seq > ?

-- name: create_queue_full
insert into trellis_queue (
  job, lane, availability, state, version, generation, attempt, claims, crashes, run_at, blocked, suspect,
  key_hash, dedupe, dedupe_unfinished, look_at, watched, tenant, weight, rank
) values (?, ?, ?, ?, ?, ?, 0, ?, 0, ?, 0, 0, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: create_undo
-- Only jobs of this call: by their ids, and not the earlier one that has an id of them.
delete from trellis_job where seq > ? and id in (select value from json_each(?))
