-- The rows of a projection, written from the events of another store.

-- name: projection_place
select last_seq, stream_id, schema, rebuilt_at, newest_at from trellis.projection where stream = $1

-- name: projection_own_jobs
-- Whether the database has jobs that come from no stream.
select 1 from trellis.job where not exists (select 1 from trellis.projection) limit 1

-- name: projection_other_stream
-- A stream of another deployment from which rows come.
select stream from trellis.projection where stream <> all($1::text[]) limit 1

-- name: projection_begin
insert into trellis.projection (stream, last_seq, stream_id, schema, rebuilt_at, newest_at)
values ($1, 0, $2, $3, $4, 0)
on conflict (stream) do nothing

-- name: projection_advance
-- Where this process thinks the projection is, it must be: another one may have stored the page.
update trellis.projection set last_seq = $1, newest_at = $2
where stream = $3 and last_seq = $4 and stream_id = $5 and schema = $6
returning last_seq

-- name: projection_known
-- The version of each of these jobs that is here; versions only rise.
select v.job, max(v.version) from (
  select q.job, q.version from trellis.queue q where q.job = any($1::bigint[])
  union all
  select o.job, o.version from trellis.outcome o where o.job = any($1::bigint[])) v
group by v.job

-- name: projection_count_events
-- How many events of each kind each of these jobs has, without notes, and when the last one was.
select j.id, e.kind, count(*), max(e.at) from trellis.job j join trellis.event e on e.job = j.seq
where j.id = any($1::text[]) and e.version > 0 group by j.id, e.kind

-- name: projection_names
select j.seq, j.id, l.service, l.type from trellis.job j join trellis.lane l on l.id = j.lane
where j.seq = any($1::bigint[])

-- name: projection_seen
select job, seen_at from trellis.queue where job = any($1::bigint[]) and seen_at is not null

-- name: projection_jobs
insert into trellis.job (
  seq, id, lane, policy, payload, created_at, request_id, traceparent, tracestate, deadline_at,
  key, key_hash, tags, config, expect, schema_version, clone_of, dedupe, dedupe_while, dedupe_until,
  attempts, timeout, relations)
select * from unnest(
  $1::bigint[], $2::text[], $3::int[], $4::int[], $5::text[], $6::bigint[], $7::text[], $8::text[],
  $9::text[], $10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[],
  $16::int[], $17::text[], $18::text[], $19::text[], $20::bigint[], $21::int[], $22::bigint[],
  $23::text[])

-- name: projection_events
-- The feed orders them by transaction, and by their numbers in it.
insert into trellis.event (seq, xid, job, version, kind, state, at, attempt, session, token, data)
overriding system value
select d.seq, (select pg_current_xact_id()::text::bigint), d.job, d.version, d.kind,
  d.state::trellis.state, d.at, d.attempt, d.session, d.token, d.data
from unnest(
  $1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::text[], $6::bigint[], $7::int[],
  $8::bigint[], $9::bigint[], $10::text[])
  d(seq, job, version, kind, state, at, attempt, session, token, data)
order by d.seq

-- name: projection_lost
-- The events of a removed job never came here: readers of the feed before this transaction have lost
-- them. $1 its number, $2 when, $3 its state.
insert into trellis.feed_horizon (xid, seq, at)
select pg_current_xact_id()::text::bigint, 0, $2::bigint
where $1::bigint > 0 and $3::text is not null
on conflict do nothing

-- name: projection_waits
select job from trellis.queue
where job = any($1::bigint[]) and availability = 'waiting_for_jobs'

-- name: projection_mark
insert into trellis.idempotency (mark, job) select * from unnest($1::text[], $2::bigint[])
on conflict (mark) do update set job = excluded.job

-- name: projection_redefine
update trellis.job set lane = $1, attempts = $2, relations = $3 where seq = $4

-- name: projection_payload
update trellis.job set payload = $1 where seq = $2

-- name: projection_queue
-- The head of a job that waits or runs; the sign of life is of the attempt that is there.
insert into trellis.queue as q (
  job, lane, availability, state, version, generation, attempt, claims, crashes, run_at, session, token,
  claimed_at, asked_at, blocked, suspect, error, key_hash, look_at, policy, tenant, weight)
select d.job, d.lane, d.availability::trellis.availability, d.state::trellis.state, d.version,
  d.generation, d.attempt, d.claims, d.crashes, d.run_at, d.session, d.token, d.claimed_at,
  d.asked_at, d.blocked, d.suspect, d.error, d.key_hash, d.look_at, d.policy, d.tenant, d.weight
from unnest(
  $1::bigint[], $2::int[], $3::text[], $4::text[], $5::int[], $6::int[], $7::int[], $8::int[],
  $9::int[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bool[],
  $16::bool[], $17::text[], $18::text[], $19::bigint[], $20::int[], $21::text[], $22::int[])
  d(job, lane, availability, state, version, generation, attempt, claims, crashes, run_at, session,
    token, claimed_at, asked_at, blocked, suspect, error, key_hash, look_at, policy, tenant, weight)
on conflict (job) do update
set seen_at = case when q.token is not distinct from excluded.token then q.seen_at end,
    lane = excluded.lane, availability = excluded.availability, state = excluded.state,
    version = excluded.version, generation = excluded.generation, attempt = excluded.attempt,
    claims = excluded.claims, crashes = excluded.crashes, run_at = excluded.run_at,
    session = excluded.session, token = excluded.token, claimed_at = excluded.claimed_at,
    asked_at = excluded.asked_at, blocked = excluded.blocked, suspect = excluded.suspect,
    error = excluded.error, look_at = excluded.look_at, policy = excluded.policy,
    tenant = excluded.tenant, weight = excluded.weight

-- name: projection_ended
delete from trellis.queue where job = any($1::bigint[])

-- name: projection_outcome
-- A second end of a generation leaves when it began and what it returned.
insert into trellis.outcome (
  job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
  error, result, keep_until, policy)
select d.job, d.generation, d.state::trellis.state, d.version, d.attempt, d.claims, d.crashes,
  d.run_at, d.started_at, d.finished_at, d.error, d.result, d.keep_until, d.policy
from unnest(
  $1::bigint[], $2::int[], $3::text[], $4::int[], $5::int[], $6::int[], $7::int[], $8::bigint[],
  $9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::bigint[], $14::int[])
  d(job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
    error, result, keep_until, policy)
on conflict (job, generation) do update
set state = excluded.state, version = excluded.version, finished_at = excluded.finished_at,
    error = excluded.error, keep_until = excluded.keep_until

-- name: projection_revived
-- Retention looks at the last end only.
update trellis.outcome o set keep_until = null
from unnest($1::bigint[], $2::int[]) d(job, generation)
where o.job = d.job and o.generation < d.generation

-- name: projection_log
insert into trellis.log (number, job, at, claim, level, message, fields)
overriding system value
select * from unnest(
  $1::bigint[], $2::bigint[], $3::bigint[], $4::int[], $5::text[], $6::text[], $7::text[])
on conflict (number) do nothing

-- name: projection_audit
insert into trellis.audit (number, at, actor, action, target, before, after, reason)
overriding system value
select * from unnest(
  $1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[])
on conflict (number) do nothing

-- name: projection_presence
insert into trellis.presence (service, type, instance, at, concurrency, version)
select * from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::int[], $6::text[])
on conflict (service, type, instance) do update
set at = excluded.at, concurrency = excluded.concurrency, version = excluded.version

-- name: projection_presence_old
delete from trellis.presence where at < $1

-- name: projection_presences
select service, type, instance, at, concurrency, version from trellis.presence
where at >= $1 order by service collate "C", type collate "C", instance collate "C"

-- name: projection_forget_sessions
-- A session that ended before the oldest job was created has run none that is kept.
delete from trellis.session
where ended_at < (select created_at from trellis.job order by seq limit 1)

-- name: projection_session
-- Only who it is: its lease is judged where it is kept.
insert into trellis.session (
  id, name, host, pid, version, details, lease, opened_at, renewed_at, ended_at, lease_until)
select d.*, 0
from unnest(
  $1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[],
  $8::bigint[], $9::bigint[], $10::bigint[])
  d(id, name, host, pid, version, details, lease, opened_at, renewed_at, ended_at)
on conflict (id) do update
set renewed_at = excluded.renewed_at, ended_at = excluded.ended_at, details = excluded.details

-- name: projection_batch
insert into trellis.batch (
  seq, id, service, name, fire_on, on_failure, parent, then_job, created_at, sealed_at, cancelled_at,
  stopping_at, finished_at, succeeded, fan_in)
select d.seq, d.id, d.service, d.name, d.fire_on, d.on_failure, (
    select p.seq from trellis.batch p where p.id = d.parent),
  d.then_job, d.created_at, d.sealed_at, d.cancelled_at, d.stopping_at, d.finished_at, d.succeeded,
  d.fan_in
from unnest(
  $1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
  $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bool[], $15::text[])
  d(seq, id, service, name, fire_on, on_failure, parent, then_job, created_at, sealed_at,
    cancelled_at, stopping_at, finished_at, succeeded, fan_in)
on conflict (seq) do update
set sealed_at = excluded.sealed_at, cancelled_at = excluded.cancelled_at,
    stopping_at = excluded.stopping_at, finished_at = excluded.finished_at,
    succeeded = excluded.succeeded, fan_in = excluded.fan_in

-- name: projection_batch_parent
-- A batch may come before the one around it.
update trellis.batch b set parent = p.seq
from unnest($1::text[], $2::text[]) d(parent, id) join trellis.batch p on p.id = d.parent
where b.id = d.id

-- name: projection_batch_removed
delete from trellis.batch where id = any($1::text[])

-- name: projection_unlink
delete from trellis.dependency d using trellis.job j where d.job = j.seq and j.id = any($1::text[])

-- name: projection_link
insert into trellis.dependency (job, prerequisite, follows_on, ended, generation)
select j.seq, p.seq, d.follows_on, d.ended, d.generation
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int[])
  d(job, prerequisite, follows_on, ended, generation)
join trellis.job j on j.id = d.job join trellis.job p on p.id = d.prerequisite
on conflict (job, prerequisite) do nothing

-- name: projection_slots_gone
delete from trellis.key_slot where key_hash = any($1::text[])

-- name: projection_slots
insert into trellis.key_slot (key_hash, job, session, token, linger_until)
select d.key_hash, coalesce(j.seq, d.below), d.session, d.token, d.linger_until
from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
  d(key_hash, job, below, session, token, linger_until)
left join trellis.job j on j.id = d.job

-- name: projection_claimable
-- The waiting jobs of these keys whose time has come: claimable are those that hold a slot.
update trellis.queue q
set availability = (case when exists (
      select 1 from trellis.key_slot s where s.job = q.job and s.linger_until is null)
    then 'ready' else 'waiting_for_slot' end)::trellis.availability
where q.key_hash = any($1::text[]) and q.availability in ('ready', 'waiting_for_slot')

-- name: projection_promote
-- $1 lanes, $2 now, $3 how many of each lane, $4 now.
update trellis.queue q
set availability = (case when q.key_hash is null or exists (
      select 1 from trellis.key_slot s where s.job = q.job and s.linger_until is null)
    then 'ready' else 'waiting_for_slot' end)::trellis.availability
where q.job in (
  select x.job from unnest($1::int[]) b(lane) cross join lateral (
    select y.job from trellis.queue y
    where y.lane = b.lane and y.availability = 'scheduled' and y.run_at <= $2
    order by y.run_at, y.job limit $3) x)
  and q.run_at <= $4
returning q.job

-- name: projection_slot
insert into trellis.schedule_slot
  (service, name, slot, outcome, late, why, through, job, decided_at)
select * from unnest(
  $1::text[], $2::text[], $3::bigint[], $4::text[], $5::bool[], $6::text[], $7::bigint[], $8::text[],
  $9::bigint[])
on conflict (service, name, slot) do update
set outcome = excluded.outcome, late = excluded.late, why = excluded.why,
    through = excluded.through, job = excluded.job, decided_at = excluded.decided_at

-- name: projection_unkeep
-- These jobs wait for an archive, unless they have changed since.
update trellis.outcome o set keep_until = null
from unnest($1::bigint[], $2::int[]) d(job, version)
where o.job = d.job and o.version = d.version

-- name: projection_lock
-- No other transaction writes a place until this transaction ends.
lock table trellis.projection in share row exclusive mode

-- name: projection_erase_archive_queue
truncate trellis.archive_queue

-- name: projection_erase_audit
truncate trellis.audit

-- name: projection_erase_batch
truncate trellis.batch

-- name: projection_erase_batch_member
truncate trellis.batch_member

-- name: projection_erase_dependency
truncate trellis.dependency

-- name: projection_erase_event
truncate trellis.event

-- name: projection_erase_idempotency
truncate trellis.idempotency

-- name: projection_erase_item
truncate trellis.item

-- name: projection_erase_job
truncate trellis.job

-- name: projection_erase_job_type
truncate trellis.job_type

-- name: projection_erase_key_slot
truncate trellis.key_slot

-- name: projection_erase_log
truncate trellis.log

-- name: projection_erase_note
truncate trellis.note

-- name: projection_erase_outcome
truncate trellis.outcome

-- name: projection_erase_past_session
truncate trellis.past_session

-- name: projection_erase_presence
truncate trellis.presence

-- name: projection_erase_projection
-- Readers of the feed have lost everything before this transaction.
with gone as (delete from trellis.projection)
insert into trellis.feed_horizon (xid, seq, at)
values (pg_current_xact_id()::text::bigint, 0, trellis.clock())
on conflict do nothing

-- name: projection_erase_queue
truncate trellis.queue

-- name: projection_erase_removal
truncate trellis.removal

-- name: projection_erase_schedule_slot
truncate trellis.schedule_slot

-- name: projection_erase_session
truncate trellis.session
