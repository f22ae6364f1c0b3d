-- Importing the jobs of another store.

-- name: import_advance
update trellis.meta set value = $1::bigint::text where name = $2

-- name: import_batches
-- One that has not finished gets its seal when all its members are here.
insert into trellis.batch (
  id, service, name, fire_on, on_failure, then_job, created_at, sealed_at, cancelled_at, stopping_at,
  finished_at, succeeded, fan_in)
select d.id, d.service, d.name, d.fire_on, d.on_failure, d.then_job, d.created_at,
  case when d.finished_at is not null then d.sealed_at end, d.cancelled_at, d.stopping_at,
  d.finished_at, d.succeeded <> 0, d.fan_in
from unnest(
  $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
  $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::int[], $14::text[])
  with ordinality d(id, service, name, fire_on, on_failure, parent, then_job, created_at, sealed_at,
    cancelled_at, stopping_at, finished_at, succeeded, fan_in, place)
order by d.place
on conflict (id) do nothing

-- name: import_parents
update trellis.batch b set parent = p.seq
from unnest($1::text[], $2::text[]) d(id, parent) join trellis.batch p on p.id = d.parent
where b.id = d.id

-- name: import_begin
insert into trellis.meta (name, value) values ($1, '0') on conflict (name) do nothing

-- name: import_cursor
select value::bigint from trellis.meta where name = $1

-- name: import_events
insert into trellis.event (xid, job, version, kind, state, at, attempt, session, token, data)
select (select pg_current_xact_id()::text::bigint), d.job, d.version, d.kind,
  d.state::trellis.state, d.at, d.attempt, d.session, d.token, d.data
from unnest(
  $1::bigint[], $2::int[], $3::text[], $4::text[], $5::bigint[], $6::int[], $7::bigint[],
  $8::bigint[], $9::text[]) with ordinality
  d(job, version, kind, state, at, attempt, session, token, data, place)
order by d.place

-- name: import_heads
-- The rows of waiting jobs: $1 jobs, $2 lanes, then columns in the order of the table.
insert into trellis.queue (
  job, lane, availability, run_at, state, version, attempt, claims, generation, crashes, blocked,
  suspect, claimed_at, asked_at, look_at, key_hash, dedupe, dedupe_unfinished, error, policy, tenant,
  weight)
select d.job, d.lane, d.availability::trellis.availability, d.run_at, d.state::trellis.state,
  d.version, d.attempt, d.claims, d.generation, d.crashes, d.blocked, d.suspect, d.claimed_at,
  d.asked_at, d.look_at, d.key_hash, d.dedupe, d.dedupe_unfinished, d.error, d.policy, d.tenant,
  d.weight
from unnest(
  $1::bigint[], $2::int[], $3::text[], $4::bigint[], $5::text[], $6::int[], $7::int[], $8::int[],
  $9::int[], $10::int[], $11::bool[], $12::bool[], $13::bigint[], $14::bigint[], $15::bigint[],
  $16::text[], $17::text[], $18::bool[], $19::text[], $20::int[], $21::text[], $22::int[])
  d(job, lane, availability, run_at, state, version, attempt, claims, generation, crashes, blocked,
    suspect, claimed_at, asked_at, look_at, key_hash, dedupe, dedupe_unfinished, error, policy,
    tenant, weight)

-- name: import_items
insert into trellis.item (job, claim, phase, name, status, detail)
select * from unnest($1::bigint[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[])

-- name: import_jobs
-- Store jobs in the order given; returns the number and id of each.
insert into trellis.job (
  id, lane, policy, schema_version, created_at, payload, request_id, traceparent, tracestate,
  deadline_at, key, key_hash, tags, config, expect, clone_of, dedupe, dedupe_while, dedupe_until,
  attempts, timeout, relations)
select d.id, d.lane, d.policy, d.schema_version, d.created_at, d.payload, d.request_id,
  d.traceparent, d.tracestate, d.deadline_at, d.key, d.key_hash, d.tags, d.config, d.expect,
  d.clone_of, d.dedupe, d.dedupe_while, d.dedupe_until, d.attempts, d.timeout,
  d.relations
from unnest(
  $1::text[], $2::int[], $3::int[], $4::int[], $5::bigint[], $6::text[], $7::text[], $8::text[],
  $9::text[], $10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[],
  $16::text[], $17::text[], $18::text[], $19::bigint[], $20::int[],
  $21::bigint[], $22::text[]) with ordinality
  d(id, lane, policy, schema_version, created_at, payload, request_id, traceparent, tracestate,
    deadline_at, key, key_hash, tags, config, expect, clone_of, dedupe, dedupe_while, dedupe_until,
    attempts, timeout, relations, place)
order by d.place
returning seq, id

-- name: import_keys
-- Keys with waiting jobs, in order, after this one.
select distinct q.key_hash from trellis.queue q
where q.key_hash is not null and q.key_hash > $1 and q.availability = 'waiting_for_slot' order by q.key_hash limit $2

-- name: import_known
-- Which of these ids are here, with what the job is; one that was removed has only its id.
select j.id, l.service, l.queue, l.type, l.priority, j.created_at, j.payload
from trellis.job j join trellis.lane l on l.id = j.lane where j.id = any($1::text[])
union all
select r.id, null, null, null, null, null, null from trellis.removal r
where r.id = any($1::text[]) and not exists (select 1 from trellis.job j where j.id = r.id)

-- name: import_numbers
select seq, id from trellis.job where id = any($1::text[])

-- name: import_waits
-- Let jobs with links that are not decided wait, and mark what they wait for.
update trellis.queue q
set watched = q.watched or exists (
      select 1 from trellis.dependency d where d.prerequisite = q.job and d.ended is null),
    availability = case when exists (
        select 1 from trellis.dependency d where d.job = q.job and d.ended is null)
      then 'waiting_for_jobs' else q.availability end
where q.job = any($1::bigint[])

-- name: import_backlog
-- Prerequisites that have ended here since they were imported.
insert into trellis.ended_prerequisite (job, state, generation)
select n.job, o.state::text, o.generation
from unnest($1::bigint[]) n(job)
cross join lateral (
  select x.state, x.generation from trellis.outcome x
  where x.job = n.job order by x.generation desc limit 1) o
where not exists (select 1 from trellis.queue q where q.job = n.job)
  and exists (select 1 from trellis.dependency d where d.prerequisite = n.job and d.ended is null)
on conflict do nothing

-- name: import_logs
insert into trellis.log (job, at, claim, level, message, fields)
select d.job, d.at, d.claim, d.level, d.message, d.fields
from unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::text[], $6::text[])
  with ordinality d(job, at, claim, level, message, fields, place)
order by d.place

-- name: import_marks
insert into trellis.idempotency (job, mark) select * from unnest($1::bigint[], $2::text[])

-- name: import_members
insert into trellis.batch_member (batch, job, linked, state, succeeded, finished_at)
select b.seq, d.job, d.linked <> 0, d.state, d.succeeded <> 0, d.finished_at
from unnest($1::bigint[], $2::text[], $3::int[], $4::text[], $5::int[], $6::bigint[])
  d(job, batch, linked, state, succeeded, finished_at)
join trellis.batch b on b.id = d.batch
on conflict do nothing

-- name: import_watch
-- Their batches wait for these jobs.
update trellis.queue q set watched = true
where q.job = any($1::bigint[]) and exists (
  select 1 from trellis.batch_member m where m.job = q.job and m.finished_at is null)

-- name: import_workers
-- They are kept while there are jobs as old as this import.
insert into trellis.past_session (id, name, host, pid, ended_at)
select d.* from unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])
  d(id, name, host, pid, ended_at)
on conflict do nothing

-- name: import_notes
insert into trellis.note (job, claim, began_at, seen_at, progress, phase)
select * from unnest($1::bigint[], $2::int[], $3::bigint[], $4::bigint[], $5::text[], $6::text[])

-- name: import_outcomes
insert into trellis.outcome (
  job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at, error,
  result, keep_until, policy)
select d.job, d.generation, d.state::trellis.state, d.version, d.attempt, d.claims, d.crashes,
  d.run_at, d.started_at, d.finished_at, d.error, d.result, d.keep_until, d.policy
from unnest(
  $1::bigint[], $2::int[], $3::text[], $4::int[], $5::int[], $6::int[], $7::int[], $8::bigint[],
  $9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::bigint[], $14::int[])
  d(job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
    error, result, keep_until, policy)

-- name: import_slots
-- A slot that was decided here stays as it is.
insert into trellis.schedule_slot
  (service, name, slot, outcome, late, why, through, job, decided_at)
select d.service, d.name, d.slot, d.outcome, d.late <> 0, d.why, d.through, d.job, d.decided_at
from unnest(
  $1::text[], $2::text[], $3::bigint[], $4::text[], $5::int[], $6::text[], $7::bigint[],
  $8::text[], $9::bigint[]) d(service, name, slot, outcome, late, why, through, job, decided_at)
on conflict do nothing

-- name: import_taken
-- Which of these marks belong to jobs here: whether it is for deduplication, the mark, the job.
-- $1 idempotency marks, $2 dedupe marks, $3 the moment.
select false, i.mark, j.id from unnest($1::text[]) n(mark)
join trellis.idempotency i on i.mark = n.mark join trellis.job j on j.seq = i.job
union all
select true, n.mark, j.id from unnest($2::text[]) n(mark)
cross join lateral (
  select q.job from trellis.queue q where q.dedupe = n.mark
  union
  select x.seq from trellis.job x where x.dedupe = n.mark and x.dedupe_until > $3::bigint) h
join trellis.job j on j.seq = h.job

-- name: import_turn
-- The progress of the move; another process that does the same move waits here.
select value::bigint from trellis.meta where name = $1 for update
