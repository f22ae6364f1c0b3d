-- Exporting the jobs of a sealed file.

-- name: export_busy
-- What prevents a seal: claimed jobs, live sessions, and ended attempts whose handler may still
-- run, by their slots and locks. Bound: this boot, and the moment on its lease clock.
select
  (select count(*) from trellis_queue q where q.session is not null),
  (select count(*) from trellis_session s
   where s.ended_at is null and s.boot_id = b.boot and s.lease_until > b.moment),
  (select count(*) from trellis_key_slot k
   where k.linger_until > b.moment and k.linger_boot = b.boot)
  + (select count(*) from trellis_lock k
     where k.linger_until > b.moment and k.linger_boot = b.boot)
from (select ? as boot, ? as moment) b

-- name: export_audit
select number, at, actor, action, target, before, after, reason from trellis_audit
where number > ? order by number limit ?

-- name: export_batches
select b.seq, b.id, b.service, b.name, b.fire_on, b.on_failure,
  (select p.id from trellis_batch p where p.seq = b.parent), b.then_job, b.created_at, b.sealed_at,
  b.cancelled_at, b.stopping_at, b.finished_at, b.succeeded, b.fan_in
from trellis_batch b where b.seq > ? order by b.seq limit ?

-- fragment: export_chosen
-- Whether the state of job r is one of these, or a batch needs it: one that has not finished, or whose
-- fan-in job is in one of the other states and may still read its members.
(r.state in (select value from json_each(?)) or exists (
  select 1 from trellis_batch_member m join trellis_batch b on b.seq = m.batch
  where m.job = r.seq and (b.finished_at is null or exists (
    select 1 from trellis_record f
    where f.id = b.fan_in and f.state in (select value from json_each(?))))))

-- name: export_counts
select r.state, count(*) from trellis_record r where r.seq <= ? and
-- include: export_chosen
group by r.state order by r.state

-- name: export_events
select e.job, e.version, e.kind, e.state, e.at, e.attempt, e.session, e.token, e.data
from json_each(?) picked join trellis_event e on e.job = picked.value order by e.seq

-- name: export_heads
-- A job that was never claimed has its slot only by its position among the waiting jobs, which it keeps.
select q.job, q.run_at, q.state, q.version, q.attempt, q.claims, q.generation, q.crashes, q.blocked,
  q.suspect, q.claimed_at, q.asked_at, q.look_at, q.key_hash, q.dedupe,
  q.dedupe_unfinished, q.error,
  (select p.body from trellis_policy p where p.id = q.policy),
  q.claims > 0 and exists (
    select 1 from trellis_key_slot s where s.job = q.job and s.linger_until is null)
from json_each(?) picked join trellis_queue q on q.job = picked.value order by q.job

-- name: export_items
select i.job, i.claim, i.phase, i.name, i.status, i.detail
from json_each(?) picked join trellis_item i on i.job = picked.value

-- name: export_jobs
-- A result that waits to be handed on goes along as the payload: its job may stay behind.
select j.seq, j.id, l.service, l.queue, l.type, l.priority, p.body, j.schema_version, j.created_at,
  case when j.relations like '%"payload_from"%' then coalesce((
    select coalesce(o.result, 'null') from trellis_job s
    join trellis_dependency d on d.job = j.seq and d.prerequisite = s.seq and d.ended is not null
    join trellis_outcome o on o.job = s.seq and o.generation = d.generation
    where s.id = json_extract(j.relations, '$.payload_from')), j.payload)
  else j.payload end, j.request_id, j.traceparent, j.tracestate, j.deadline_at, j.key, j.key_hash, j.tags,
  j.config, j.expect, j.clone_of, j.dedupe, j.dedupe_while, j.dedupe_until, j.attempts,
  j.timeout, j.relations
from json_each(?) picked join trellis_job j on j.seq = picked.value
join trellis_lane l on l.id = j.lane join trellis_policy p on p.id = j.policy order by j.seq

-- name: export_links
select d.job, p.id, d.follows_on, d.ended, d.generation
from json_each(?) picked join trellis_dependency d on d.job = picked.value
join trellis_job p on p.seq = d.prerequisite

-- name: export_logs
select g.job, g.at, g.claim, g.level, g.message, g.fields
from json_each(?) picked join trellis_log g on g.job = picked.value order by g.number

-- name: export_marks
select i.job, i.mark from json_each(?) picked join trellis_idempotency i on i.job = picked.value

-- name: export_workers
-- The worker processes that ran these jobs.
select distinct e.session, coalesce(s.name, p.name), coalesce(s.host, p.host), coalesce(s.pid, p.pid)
from json_each(?) picked join trellis_event e on e.job = picked.value
left join trellis_session s on s.id = e.session
left join trellis_past_session p on p.id = e.session
where coalesce(s.name, p.name) is not null

-- name: export_notes
select n.job, n.claim, n.began_at, n.seen_at, n.progress, n.phase
from json_each(?) picked join trellis_note n on n.job = picked.value

-- name: export_outcomes
select o.job, o.generation, o.state, o.version, o.attempt, o.claims, o.crashes, o.run_at,
  o.started_at, o.finished_at, o.error, o.result,
  coalesce(o.keep_until, (select q.queued_at from trellis_archive_queue q where q.job = o.job)),
  (select p.body from trellis_policy p where p.id = o.policy)
from json_each(?) picked join trellis_outcome o on o.job = picked.value

-- name: export_members
select m.job, b.id, m.linked, m.state, m.succeeded, m.finished_at
from json_each(?) picked join trellis_batch_member m on m.job = picked.value
join trellis_batch b on b.seq = m.batch

-- name: export_page
select r.seq, length(r.payload) from trellis_record r where r.seq > ? and
-- include: export_chosen
order by r.seq limit ?

-- name: export_slots
select slot, service, name, slot, outcome, late, why, through, job, decided_at
from trellis_schedule_slot where service = ? and name = ? and slot > ? order by slot limit ?

-- name: export_is_sealed
select 1 from sqlite_master where type = 'table' and name = 'trellis_moved'

-- name: export_seal_table
create table trellis_moved (
  id text not null, instance text not null, address text not null, is_finished integer not null)

-- name: export_seal_put
insert into trellis_moved (id, instance, address, is_finished) values (?, ?, ?, ?)

-- name: export_seal
select id, instance, address, is_finished from trellis_moved

-- name: export_finish
update trellis_moved set is_finished = 1

-- fragment: export_trigger
-- One for each table and kind of change: a sealed file is read only for every program.
create trigger trellis_moved_{change}_{table} before {change} on trellis_{table}
begin select raise(abort, '{text}'); end
