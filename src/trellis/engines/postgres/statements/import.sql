-- Importing the jobs of another store.

-- name: import_advance
update trellis.meta set value = $2::bigint::text where name = $1

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
-- The rows of waiting jobs. One that is due is claimable if it needs no slot or has one; that of a
-- tenant waits for its promotion, which gives it a rank.
-- $1 jobs, $2 lanes, then columns in the order of the table.
insert into trellis.queue (
  job, lane, availability, run_at, state, version, attempt, claims, generation, crashes, blocked,
  suspect, claimed_at, asked_at, look_at, key_hash, dedupe, dedupe_unfinished, error, policy, tenant,
  weight)
select d.job, d.lane,
  case when d.run_at > trellis.clock() or j.relations::json ->> 'tenant' is not null then 'scheduled'
       when d.key_hash is null or exists (select 1 from trellis.key_slot s where s.job = d.job)
         then 'ready'
       else 'waiting_for_slot' end::trellis.availability,
  d.run_at, d.state::trellis.state, d.version, d.attempt, d.claims, d.generation, d.crashes,
  d.blocked, d.suspect, d.claimed_at, d.asked_at, d.look_at, d.key_hash, d.dedupe,
  d.dedupe_unfinished, d.error, d.policy, j.relations::json ->> 'tenant',
  (j.relations::json ->> 'weight')::int
from unnest(
  $1::bigint[], $2::int[], $3::bigint[], $4::text[], $5::int[], $6::int[], $7::int[], $8::int[],
  $9::int[], $10::bool[], $11::bool[], $12::bigint[], $13::bigint[], $14::bigint[], $15::text[],
  $16::text[], $17::bool[], $18::text[], $19::int[])
  d(job, lane, run_at, state, version, attempt, claims, generation, crashes, blocked, suspect,
    claimed_at, asked_at, look_at, key_hash, dedupe, dedupe_unfinished, error, policy)
join trellis.job j on j.seq = d.job

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
-- Which of these ids are here, and whether as the same jobs; one that was here and was removed is.
-- $1 ids, $2 services, $3 queues, $4 types, $5 priorities, $6 moments of creation, $7 payloads.
select n.id, (l.service, l.queue, l.type, l.priority, j.created_at, j.payload)
  = (n.service, n.queue, n.type, n.priority, n.created_at, n.payload)
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int[], $6::bigint[], $7::text[])
  n(id, service, queue, type, priority, created_at, payload)
join trellis.job j on j.id = n.id join trellis.lane l on l.id = j.lane
union all
select n.id, true from unnest($1::text[]) n(id) join trellis.removal r on r.id = n.id
where not exists (select 1 from trellis.job j where j.id = n.id)

-- name: import_links
-- Links to jobs that are here; an ended one that stayed behind has decided its links already.
insert into trellis.dependency (job, prerequisite, follows_on, ended, generation)
select d.job, p.seq, d.follows_on, d.ended, d.generation
from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::int[])
  d(job, prerequisite, follows_on, ended, generation)
join trellis.job p on p.id = d.prerequisite
on conflict do nothing
returning job, prerequisite

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
select d.*, trellis.clock()
from unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[]) d(id, name, host, pid)
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

-- name: import_slot
-- Let a job hold a slot of its key, if one is free by its own policy; the caller has the key's lock.
insert into trellis.key_slot (key_hash, job)
select j.key_hash, j.seq from trellis.job j join trellis.policy p on p.id = j.policy
where j.seq = $1
  and (select count(*) from trellis.key_slot s where s.key_hash = j.key_hash) < p.active
returning job

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
-- $1 idempotency marks; $2 dedupe marks, and until when those hold that have a period.
select false, i.mark, j.id from unnest($1::text[]) n(mark)
join trellis.idempotency i on i.mark = n.mark join trellis.job j on j.seq = i.job
union all
select true, n.mark, j.id from unnest($2::text[], $3::bigint[]) n(mark, until)
cross join lateral (
  select q.job from trellis.queue q where q.dedupe = n.mark
  union
  select x.seq from trellis.job x where x.dedupe = n.mark and x.dedupe_until > trellis.clock()) h
join trellis.job j on j.seq = h.job
where n.until is null or n.until > trellis.clock()

-- name: import_turn
-- The progress of the move; another process that does the same move waits here.
select value::bigint from trellis.meta where name = $1 for update
