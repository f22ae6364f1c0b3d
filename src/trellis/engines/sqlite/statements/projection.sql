-- The rows of a projection, written from the events of another store.

-- name: projection_place
select last_seq, stream_id, schema, rebuilt_at, newest_at from trellis_projection where stream = ?

-- name: projection_own_jobs
-- Whether the file has jobs that come from no stream.
select 1 from trellis_job where not exists (select 1 from trellis_projection) limit 1

-- name: projection_other_stream
-- A stream of another deployment from which rows come.
select stream from trellis_projection where stream not in (select value from json_each(?)) limit 1

-- name: projection_begin
insert into trellis_projection (stream, last_seq, stream_id, schema, rebuilt_at, newest_at)
values (?, 0, ?, ?, ?, 0)
on conflict (stream) do nothing

-- name: projection_advance
-- Where this process thinks the projection is, it must be: another one may have stored the page.
update trellis_projection set last_seq = ?, newest_at = ?
where stream = ? and last_seq = ? and stream_id = ? and schema = ?
returning last_seq

-- name: projection_known
-- The version of each of these jobs that is here; versions only rise.
select n.value, max(
    coalesce((select q.version from trellis_queue q where q.job = n.value), 0),
    coalesce((select max(o.version) from trellis_outcome o where o.job = n.value), 0)) as version
from json_each(?) n
where version > 0

-- name: projection_count_events
-- How many events of each kind each of these jobs has, without notes, and when the last one was.
select j.id, e.kind, count(*), max(e.at) from json_each(?) n
join trellis_job j on j.id = n.value join trellis_event e on e.job = j.seq
where e.version > 0 group by j.id, e.kind

-- name: projection_names
select j.seq, j.id, l.service, l.type
from json_each(?) n join trellis_job j on j.seq = n.value join trellis_lane l on l.id = j.lane

-- name: projection_seen
select job, seen_at from trellis_queue
where job in (select value from json_each(?)) and seen_at is not null

-- name: projection_jobs
insert into trellis_job (
  seq, id, lane, policy, payload, created_at, request_id, traceparent, tracestate, deadline_at,
  key, key_hash, tags, config, expect, schema_version, clone_of, dedupe, dedupe_while, dedupe_until,
  attempts, timeout, relations
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: projection_events
-- Their numbers are those of the messages: a cursor of the feed is one for every projection.
insert into trellis_event (seq, job, version, kind, state, at, attempt, session, token, data)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: projection_lost
-- The events of a removed job never came here: readers of the feed before this number have lost them.
insert into trellis_event (seq, job, version, kind, at, state, attempt)
select ?, 0, 0, 'removed', ?, ?, 0

-- name: projection_waits
select job from trellis_queue
where job in (select value from json_each(?)) and availability = 'waiting_for_jobs'

-- name: projection_mark
insert or replace into trellis_idempotency (mark, job) values (?, ?)

-- name: projection_redefine
update trellis_job set lane = ?, attempts = ?, relations = ? where seq = ?

-- name: projection_payload
update trellis_job set payload = ? where seq = ?

-- name: projection_queue
-- The head of a job that waits or runs; the sign of life is of the attempt that is there.
insert into trellis_queue (
  job, lane, availability, state, version, generation, attempt, claims, crashes, run_at, session, token,
  claimed_at, asked_at, blocked, suspect, error, key_hash, look_at, policy, tenant, weight
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (job) do update
set seen_at = case when trellis_queue.token is excluded.token then trellis_queue.seen_at end,
    lane = excluded.lane, availability = excluded.availability, state = excluded.state,
    version = excluded.version, generation = excluded.generation, attempt = excluded.attempt,
    claims = excluded.claims, crashes = excluded.crashes, run_at = excluded.run_at,
    session = excluded.session, token = excluded.token, claimed_at = excluded.claimed_at,
    asked_at = excluded.asked_at, blocked = excluded.blocked, suspect = excluded.suspect,
    error = excluded.error, look_at = excluded.look_at, policy = excluded.policy,
    tenant = excluded.tenant, weight = excluded.weight

-- name: projection_ended
delete from trellis_queue where job in (values (?))

-- name: projection_outcome
-- A second end of a generation leaves when it began and what it returned.
insert into trellis_outcome (
  job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
  error, result, keep_until, policy
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (job, generation) do update
set state = excluded.state, version = excluded.version, finished_at = excluded.finished_at,
    error = excluded.error, keep_until = excluded.keep_until

-- name: projection_revived
-- Retention looks at the last end only.
update trellis_outcome set keep_until = null
from (values (?, ?)) b
where trellis_outcome.job = b.column1 and trellis_outcome.generation < b.column2

-- name: projection_log
insert into trellis_log (number, job, at, claim, level, message, fields) values (?, ?, ?, ?, ?, ?, ?)
on conflict (number) do nothing

-- name: projection_audit
insert into trellis_audit (number, at, actor, action, target, before, after, reason)
values (?, ?, ?, ?, ?, ?, ?, ?)
on conflict (number) do nothing

-- name: projection_presence
insert into trellis_presence (service, type, instance, at, concurrency, version)
values (?, ?, ?, ?, ?, ?)
on conflict (service, type, instance) do update
set at = excluded.at, concurrency = excluded.concurrency, version = excluded.version

-- name: projection_presence_old
delete from trellis_presence where at < ?

-- name: projection_presences
select service, type, instance, at, concurrency, version from trellis_presence
where at >= ? order by service, type, instance

-- name: projection_forget_sessions
-- A session that ended before the oldest job was created has run none that is kept.
delete from trellis_session
where ended_at < (select created_at from trellis_job order by seq limit 1)

-- name: projection_session
-- Only who it is: its lease is judged where it is kept.
insert into trellis_session (
  id, name, host, pid, version, details, lease, opened_at, renewed_at, ended_at, lease_until, boot_id
) select *, 0, '' from (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) where true
on conflict (id) do update
set renewed_at = excluded.renewed_at, ended_at = excluded.ended_at, details = excluded.details

-- name: projection_batch
insert into trellis_batch (
  seq, id, service, name, fire_on, on_failure, parent, then_job, created_at, sealed_at, cancelled_at,
  stopping_at, finished_at, succeeded, fan_in)
select b.column1, b.column2, b.column3, b.column4, b.column5, b.column6,
  (select p.seq from trellis_batch p where p.id = b.column7), b.column8, b.column9, b.column10,
  b.column11, b.column12, b.column13, b.column14, b.column15
from (values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) b
where true
on conflict (seq) do update
set sealed_at = excluded.sealed_at, cancelled_at = excluded.cancelled_at,
    stopping_at = excluded.stopping_at, finished_at = excluded.finished_at,
    succeeded = excluded.succeeded, fan_in = excluded.fan_in

-- name: projection_batch_parent
-- A batch may come before the one around it.
update trellis_batch set parent = (select p.seq from trellis_batch p where p.id = b.column1)
from (values (?, ?)) b where trellis_batch.id = b.column2

-- name: projection_batch_removed
delete from trellis_batch where id in (values (?))

-- name: projection_unlink
delete from trellis_dependency
where job in (select j.seq from trellis_job j where j.id in (values (?)))

-- name: projection_link
insert or replace into trellis_dependency (job, prerequisite, follows_on, ended, generation)
select j.seq, p.seq, b.column3, b.column4, b.column5
from (values (?, ?, ?, ?, ?)) b
cross join trellis_job j on j.id = b.column1 cross join trellis_job p on p.id = b.column2

-- name: projection_slots_gone
delete from trellis_key_slot where key_hash in (values (?))

-- name: projection_slots
insert into trellis_key_slot (key_hash, job, session, token, linger_until)
select b.column1, coalesce((select j.seq from trellis_job j where j.id = b.column2), b.column3),
  b.column4, b.column5, b.column6
from (values (?, ?, ?, ?, ?, ?)) b

-- name: projection_claimable
-- The waiting jobs of these keys whose time has come: claimable are those that hold a slot.
update trellis_queue
set availability = case when exists (
      select 1 from trellis_key_slot s where s.job = trellis_queue.job and s.linger_until is null)
    then 'ready' else 'waiting_for_slot' end
where key_hash in (select value from json_each(?))
  and availability in ('ready', 'waiting_for_slot')

-- name: projection_promote
-- Bound: lanes, now, how many of each lane, now.
update trellis_queue
set availability = case when key_hash is null or exists (
      select 1 from trellis_key_slot s where s.job = trellis_queue.job and s.linger_until is null)
    then 'ready' else 'waiting_for_slot' end
where job in (
  select q.job from json_each(?) b
  cross join trellis_queue q on q.job in (
    select x.job from trellis_queue x
    where x.lane = b.value and x.availability = 'scheduled' and x.run_at <= ?
    order by x.run_at, x.job limit ?))
  and run_at <= ?

-- name: projection_slot
insert or replace into trellis_schedule_slot
  (service, name, slot, outcome, late, why, through, job, decided_at)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: projection_unkeep
-- These jobs wait for an archive, unless they have changed since.
update trellis_outcome set keep_until = null where (job, version) in (values (?, ?))

-- name: projection_view_metadata
create view if not exists projection_metadata as
select stream, last_seq, schema, rebuilt_at from trellis_projection

-- name: projection_view_jobs
-- As programs of other languages read jobs.
create view if not exists jobs_projection as
select j.id, j.service, j.type, j.queue, j.state, j.payload, j.result,
  j.created_at, j.updated_at, j.started_at, j.finished_at as completed_at, j.attempt as tries,
  coalesce(j.attempts_set, json_extract(coalesce(j.declared, j.policy), '$.retry.attempts')) as max_tries,
  json_extract(j.error, '$[1]') as last_error, j.deadline_at as deadline, j.key, j.key_hash, j.request_id,
  j.traceparent, j.worker
from trellis_jobs j

-- name: projection_view_presence
create view if not exists worker_presence_projection as
select service, type, instance as instance_id, concurrency, version, at as heartbeat_at
from trellis_presence

-- name: projection_erase_archive_queue
delete from trellis_archive_queue

-- name: projection_erase_audit
delete from trellis_audit

-- name: projection_erase_batch
delete from trellis_batch

-- name: projection_erase_batch_member
delete from trellis_batch_member

-- name: projection_erase_dependency
delete from trellis_dependency

-- name: projection_erase_event
delete from trellis_event

-- name: projection_erase_idempotency
delete from trellis_idempotency

-- name: projection_erase_item
delete from trellis_item

-- name: projection_erase_job
delete from trellis_job

-- name: projection_erase_job_type
delete from trellis_job_type

-- name: projection_erase_key_slot
delete from trellis_key_slot

-- name: projection_erase_log
delete from trellis_log

-- name: projection_erase_note
delete from trellis_note

-- name: projection_erase_outcome
delete from trellis_outcome

-- name: projection_erase_past_session
delete from trellis_past_session

-- name: projection_erase_presence
delete from trellis_presence

-- name: projection_erase_projection
delete from trellis_projection

-- name: projection_erase_queue
delete from trellis_queue

-- name: projection_erase_removal
delete from trellis_removal

-- name: projection_erase_schedule_slot
delete from trellis_schedule_slot

-- name: projection_erase_session
delete from trellis_session
