-- Exporting the jobs of a sealed database.

-- name: export_lock
-- No other transaction changes anything until this one ends.
lock table
  trellis.job, trellis.queue, trellis.outcome, trellis.event, trellis.session, trellis.key_slot,
  trellis.note, trellis.item, trellis.log, trellis.idempotency, trellis.queue_setting,
  trellis.drain_change, trellis.lock, trellis.past_session, trellis.removal, trellis.job_limit,
  trellis.limit_bucket, trellis.lingering, trellis.key_bucket, trellis.key_wake, trellis.contract,
  trellis.job_type, trellis.audit, trellis.schedule, trellis.schedule_slot, trellis.archive,
  trellis.archive_queue, trellis.batch, trellis.batch_member, trellis.dependency,
  trellis.ended_prerequisite, trellis.share
in share row exclusive mode

-- name: export_refuse
-- What every change of a sealed table leads to.
create or replace function trellis.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'its jobs were moved to %, and nothing here can be changed any more; use that URL instead',
    (select m.value::json ->> 'address' from trellis.meta m where m.name = 'moved');
end $$

-- name: export_shut
-- A trigger on each table that `export_lock` names.
do $$
declare name text;
begin
  foreach name in array array[
    'trellis.job', 'trellis.queue', 'trellis.outcome', 'trellis.event', 'trellis.session',
    'trellis.key_slot', 'trellis.note', 'trellis.item', 'trellis.log', 'trellis.idempotency',
    'trellis.queue_setting', 'trellis.drain_change', 'trellis.lock', 'trellis.past_session',
    'trellis.removal', 'trellis.job_limit', 'trellis.limit_bucket', 'trellis.lingering',
    'trellis.key_bucket', 'trellis.key_wake', 'trellis.contract', 'trellis.job_type',
    'trellis.audit', 'trellis.schedule', 'trellis.schedule_slot', 'trellis.archive',
    'trellis.archive_queue', 'trellis.batch', 'trellis.batch_member', 'trellis.dependency',
    'trellis.ended_prerequisite', 'trellis.share'] loop
    execute format(
      'create trigger moved before insert or update or delete or truncate on %s '
      'for each statement execute function trellis.refuse_change()', name);
  end loop;
end $$

-- name: export_busy
-- What prevents a seal: claimed jobs, live sessions, and ended attempts whose handler may still
-- run, by their slots and locks.
select
  (select count(*) from trellis.queue q where q.session is not null),
  (select count(*) from trellis.session s
   where s.ended_at is null and s.lease_until > trellis.clock()),
  (select count(*) from trellis.key_slot k where k.linger_until > trellis.clock())
  + (select count(*) from trellis.lock k where k.linger_until > trellis.clock())

-- name: export_seal_put
insert into trellis.meta (name, value) values ('moved', $1)

-- name: export_seal
select value from trellis.meta where name = 'moved'

-- name: export_finish
update trellis.meta set value = $1 where name = 'moved'

-- name: export_audit
select number, at, actor, action, target, before, after, reason from trellis.audit
where number > $1 order by number limit $2

-- name: export_batches
select b.seq, b.id, b.service, b.name, b.fire_on, b.on_failure,
  (select p.id from trellis.batch p where p.seq = b.parent), b.then_job, b.created_at, b.sealed_at,
  b.cancelled_at, b.stopping_at, b.finished_at, b.succeeded::int, b.fan_in
from trellis.batch b where b.seq > $1 order by b.seq limit $2

-- name: export_slots
select slot, service, name, slot, outcome, late::int, why, through, job, decided_at
from trellis.schedule_slot where service = $1 and name = $2 and slot > $3 order by slot limit $4

-- fragment: export_chosen
-- Whether the state of job r is one of $2, or a batch needs it: one that has not finished, or whose
-- fan-in job is in one of the states $3 and may still read its members.
(r.state = any($2::text[]) or exists (
  select 1 from trellis.batch_member m join trellis.batch b on b.seq = m.batch
  where m.job = r.seq and (b.finished_at is null or exists (
    select 1 from trellis.record f where f.id = b.fan_in and f.state = any($3::text[])))))

-- name: export_counts
select r.state, count(*) from trellis.record r where r.seq <= $1 and
-- include: export_chosen
group by r.state order by r.state

-- name: export_page
select r.seq, length(r.payload) from trellis.record r where r.seq > $1 and
-- include: export_chosen
order by r.seq limit $4

-- name: export_jobs
-- A result that waits to be handed on goes along as the payload: its job may stay behind.
select j.seq, j.id, l.service, l.queue, l.type, l.priority, p.body, j.schema_version, j.created_at,
  case when j.relations like '%"payload_from"%' then coalesce((
    select coalesce(o.result, 'null') from trellis.job s
    join trellis.dependency d on d.job = j.seq and d.prerequisite = s.seq and d.ended is not null
    join trellis.outcome o on o.job = s.seq and o.generation = d.generation
    where s.id = j.relations::json ->> 'payload_from'), j.payload)
  else j.payload end, j.request_id, j.traceparent, j.tracestate, j.deadline_at, j.key, j.key_hash,
  j.tags, j.config, j.expect, j.clone_of, j.dedupe, j.dedupe_while, j.dedupe_until, j.attempts,
  j.timeout, j.relations
from trellis.job j join trellis.lane l on l.id = j.lane join trellis.policy p on p.id = j.policy
where j.seq = any($1::bigint[]) order by j.seq

-- name: export_heads
-- A job that was never claimed has its slot only by its position among the waiting jobs, which it
-- keeps.
select q.job, q.run_at, q.state::text, q.version, q.attempt, q.claims, q.generation, q.crashes,
  q.blocked, q.suspect, q.claimed_at, q.asked_at, q.look_at, q.key_hash, q.dedupe,
  q.dedupe_unfinished, q.error,
  (select p.body from trellis.policy p where p.id = q.policy),
  q.claims > 0 and exists (
    select 1 from trellis.key_slot s where s.job = q.job and s.linger_until is null)
from trellis.queue q where q.job = any($1::bigint[]) order by q.job

-- name: export_marks
select i.job, i.mark from trellis.idempotency i where i.job = any($1::bigint[])

-- name: export_outcomes
select o.job, o.generation, o.state::text, o.version, o.attempt, o.claims, o.crashes, o.run_at,
  o.started_at, o.finished_at, o.error, o.result,
  coalesce(o.keep_until, (select q.queued_at from trellis.archive_queue q where q.job = o.job)),
  (select p.body from trellis.policy p where p.id = o.policy)
from trellis.outcome o where o.job = any($1::bigint[])

-- name: export_events
-- The journal of a job: what changed it by its version, and late results where they came.
select e.job, e.version, e.kind, e.state::text, e.at, e.attempt, e.session, e.token, e.data
from trellis.event e where e.job = any($1::bigint[]) order by e.seq

-- name: export_notes
select n.job, n.claim, n.began_at, n.seen_at, n.progress, n.phase
from trellis.note n where n.job = any($1::bigint[])

-- name: export_items
select i.job, i.claim, i.phase, i.name, i.status, i.detail
from trellis.item i where i.job = any($1::bigint[])

-- name: export_logs
select g.job, g.at, g.claim, g.level, g.message, g.fields
from trellis.log g where g.job = any($1::bigint[]) order by g.number

-- name: export_links
select d.job, p.id, d.follows_on, d.ended, d.generation
from trellis.dependency d join trellis.job p on p.seq = d.prerequisite
where d.job = any($1::bigint[])

-- name: export_members
select m.job, b.id, m.linked::int, m.state, m.succeeded::int, m.finished_at
from trellis.batch_member m join trellis.batch b on b.seq = m.batch
where m.job = any($1::bigint[])

-- name: export_workers
-- The worker processes that ran these jobs.
select distinct e.session, coalesce(s.name, p.name), coalesce(s.host, p.host), coalesce(s.pid, p.pid)
from trellis.event e
left join trellis.session s on s.id = e.session
left join trellis.past_session p on p.id = e.session
where e.job = any($1::bigint[]) and coalesce(s.name, p.name) is not null
