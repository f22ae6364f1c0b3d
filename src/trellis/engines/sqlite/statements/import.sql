-- Importing the jobs of another store.

-- name: import_advance
update trellis_meta set value = ? where name = ?

-- name: import_batches
-- One that has not finished gets its seal when all its members are here.
with given (id, service, name, fire_on, on_failure, parent, then_job, created_at, sealed_at, cancelled_at,
  stopping_at, finished_at, succeeded, fan_in) as (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
insert or ignore into trellis_batch (
  id, service, name, fire_on, on_failure, then_job, created_at, sealed_at, cancelled_at, stopping_at,
  finished_at, succeeded, fan_in)
select given.id, given.service, given.name, given.fire_on, given.on_failure, given.then_job, given.created_at,
  case when given.finished_at is not null then given.sealed_at end, given.cancelled_at, given.stopping_at,
  given.finished_at, given.succeeded, given.fan_in
from given

-- name: import_parents
with given (id, parent) as (values (?, ?))
update trellis_batch set parent = (
  select p.seq from given join trellis_batch p on p.id = given.parent where given.id = trellis_batch.id)
where id in (select given.id from given join trellis_batch p on p.id = given.parent)

-- name: import_begin
insert or ignore into trellis_meta (name, value) values (?, 0)

-- name: import_cursor
select value from trellis_meta where name = ?

-- name: import_turn
-- The progress of the move: the transaction has the file for itself.
select value from trellis_meta where name = ?

-- name: import_identify
-- A file that receives jobs gets a number by which it is known.
insert or ignore into trellis_meta (name, value) values ('instance', ?)

-- name: import_instance
select value from trellis_meta where name = 'instance'

-- name: import_events
insert into trellis_event (job, version, kind, state, at, attempt, session, token, data)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: import_heads
insert into trellis_queue (
  job, lane, availability, run_at, state, version, attempt, claims, generation, crashes, blocked,
  suspect, claimed_at, asked_at, look_at, key_hash, dedupe, dedupe_unfinished, error, policy, tenant,
  weight)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: import_items
insert into trellis_item (job, claim, phase, name, status, detail) values (?, ?, ?, ?, ?, ?)

-- name: import_jobs
insert into trellis_job (
  seq, id, lane, policy, schema_version, created_at, payload, request_id, traceparent, tracestate,
  deadline_at, key, key_hash, tags, config, expect, clone_of, dedupe, dedupe_while, dedupe_until,
  attempts, timeout, relations)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: import_keys
-- Keys with waiting jobs, in order, after this one.
select distinct q.key_hash from trellis_queue q
where q.key_hash is not null and q.key_hash > ? and q.availability = 'waiting_for_slot'
order by q.key_hash limit ?

-- name: import_known
-- Which of these ids are here, with what the job is; one that was removed has only its id.
with wanted as (select ? as ids)
select j.id, l.service, l.queue, l.type, l.priority, j.created_at, j.payload
from wanted, json_each(wanted.ids) n cross join trellis_job j on j.id = n.value
join trellis_lane l on l.id = j.lane
union all
select r.id, null, null, null, null, null, null
from wanted, json_each(wanted.ids) n cross join trellis_removal r on r.id = n.value
where not exists (select 1 from trellis_job j where j.id = r.id)

-- name: import_numbers
select seq, id from trellis_job where id in (select value from json_each(?))

-- name: import_waits
-- Let jobs with links that are not decided wait, and mark what they wait for.
update trellis_queue
set watched = watched or exists (
      select 1 from trellis_dependency d
      where d.prerequisite = trellis_queue.job and d.ended is null),
    availability = case when exists (
        select 1 from trellis_dependency d where d.job = trellis_queue.job and d.ended is null)
      then 'waiting_for_jobs' else availability end
where job in (select value from json_each(?))

-- name: import_backlog
-- Prerequisites that have ended here since they were imported.
insert or ignore into trellis_ended_prerequisite (job, state, generation)
select o.job, o.state, max(o.generation) from trellis_outcome o
where o.job in (select value from json_each(?))
  and not exists (select 1 from trellis_queue q where q.job = o.job)
  and exists (
    select 1 from trellis_dependency d where d.prerequisite = o.job and d.ended is null)
group by o.job

-- name: import_logs
insert into trellis_log (job, at, claim, level, message, fields) values (?, ?, ?, ?, ?, ?)

-- name: import_marks
insert into trellis_idempotency (job, mark) values (?, ?)

-- name: import_members
with given (job, batch, linked, state, succeeded, finished_at) as (values (?, ?, ?, ?, ?, ?))
insert or ignore into trellis_batch_member (batch, job, linked, state, succeeded, finished_at)
select b.seq, given.job, given.linked, given.state, given.succeeded, given.finished_at
from given join trellis_batch b on b.id = given.batch

-- name: import_watch
-- Their batches wait for these jobs.
update trellis_queue set watched = 1
where job in (select value from json_each(?)) and exists (
  select 1 from trellis_batch_member m
  where m.job = trellis_queue.job and m.finished_at is null)

-- name: import_workers
-- They are kept while there are jobs as old as this import.
insert or ignore into trellis_past_session (id, name, host, pid, ended_at) values (?, ?, ?, ?, ?)

-- name: import_notes
insert into trellis_note (job, claim, began_at, seen_at, progress, phase) values (?, ?, ?, ?, ?, ?)

-- name: import_outcomes
insert into trellis_outcome (
  job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at, error,
  result, keep_until, policy)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: import_slots
-- A slot that was decided here stays as it is.
insert or ignore into trellis_schedule_slot
  (service, name, slot, outcome, late, why, through, job, decided_at)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: import_taken
-- Which of these marks belong to jobs here: whether it is for deduplication, the mark, the job.
-- Bound: idempotency marks, dedupe marks, the moment.
with wanted as (select ? as once, ? as marks, ? as now)
select 0, i.mark, j.id from wanted, json_each(wanted.once) n
cross join trellis_idempotency i on i.mark = n.value join trellis_job j on j.seq = i.job
union
select 1, q.dedupe, j.id from wanted, json_each(wanted.marks) n
cross join trellis_queue q on q.dedupe = n.value join trellis_job j on j.seq = q.job
union
select 1, j.dedupe, j.id from wanted, json_each(wanted.marks) n
cross join trellis_job j on j.dedupe = n.value and j.dedupe_until > wanted.now
