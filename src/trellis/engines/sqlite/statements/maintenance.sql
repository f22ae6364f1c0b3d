-- What the clock makes due, promotion, retention, removal.

-- name: due_jobs
select r.* from trellis_queue d join trellis_record r on r.seq = d.job
where d.look_at is not null and d.look_at <= ?
order by d.look_at, d.job limit ?

-- name: due_scheduled
-- Delayed jobs of these lanes whose time has come, the earliest first.
-- Parameters: lanes, now, most per lane, most in all; null is no limit.
select q.job, q.key_hash, q.lane, case when q.rank is null then q.tenant end, q.weight
from json_each(?) b
cross join trellis_queue q on q.job in (
  select x.job from trellis_queue x
  where x.lane = b.value and x.availability = 'scheduled' and x.run_at <= ?
  order by x.run_at, x.job limit ?)
order by q.run_at, q.job limit coalesce(?, -1)

-- name: due_lost
select r.* from trellis_queue h indexed by trellis_queue_session
join trellis_record r on r.seq = h.job
where h.session is not null and h.blocked = 0
  and not exists (select 1 from trellis_session s where s.id = h.session and s.ended_at is null)
order by h.job limit ?

-- name: due_sessions
select id from trellis_session
where ended_at is null and (boot_id <> ? or lease_until <= ?)
order by number limit ?

-- name: next_due
-- The first of each lane comes from the index; there are as many lanes as kinds of jobs. Jobs of keys
-- with a rate wait for their next token.
select min(moment) from (
  select min((
    select min(q.run_at) from trellis_queue q
    where q.lane = l.id and q.availability = 'scheduled')) as moment
  from trellis_lane l
  union all
  select min(at) from trellis_key_wake)

-- name: prune_dependency
delete from trellis_dependency where job in (values (?))

-- name: prune_dependent
delete from trellis_dependency where prerequisite in (values (?))

-- name: prune_event
-- Also what the feed has kept of removed jobs, except the last.
delete from trellis_event where job in (values (?))
  or (job = 0 and seq < (select max(seq) from trellis_event where job = 0))

-- name: prune_idempotency
delete from trellis_idempotency where job in (values (?))

-- name: prune_item
delete from trellis_item where job in (values (?))

-- name: prune_job
delete from trellis_job where seq in (values (?))

-- name: prune_log
delete from trellis_log where job in (values (?))

-- name: prune_note
delete from trellis_note where job in (values (?))

-- name: prune_outcome
delete from trellis_outcome where job in (values (?))

-- name: prune_peek
-- Whether retention has anything to look at.
select 1 from trellis_outcome where keep_until is not null and keep_until <= ? limit 1

-- name: prune_pick
with reading(state) as (select value from json_each(?))
select o.job, j.id, o.state, l.service
from trellis_outcome o join trellis_job j on j.seq = o.job join trellis_lane l on l.id = j.lane
where o.keep_until is not null and o.keep_until <= ?
  and not exists (
    select 1 from trellis_dependency d join trellis_queue q on q.job = d.job
    where d.prerequisite = o.job)
  and not exists (
    select 1 from trellis_batch_member m join trellis_batch b on b.seq = m.batch
    where m.job = o.job and (
-- include: batch_keeps
    ))
order by o.keep_until, o.job limit ?

-- name: prune_archive_queue
delete from trellis_archive_queue where job in (values (?))

-- name: prune_removals
-- What is known of jobs that were removed long ago.
delete from trellis_removal where id in (
  select id from trellis_removal where removed_at <= ? order by removed_at, id limit ?)

-- name: prune_removals_peek
select 1 from trellis_removal where removed_at <= ? limit 1

-- name: prune_removal
insert or replace into trellis_removal (id, state, removed_at) values (?, ?, ?)

-- name: remove_look
-- A live job has a row in the queue; an ended one has none. Last: whether a live job follows it, and
-- whether a batch keeps it.
with reading(state) as (select value from json_each(?))
select r.seq, r.id, r.state, r.availability is not null, exists (
  select 1 from trellis_dependency d join trellis_queue q on q.job = d.job
  where d.prerequisite = r.seq), exists (
  select 1 from trellis_batch_member m join trellis_batch b on b.seq = m.batch
  where m.job = r.seq and (
-- include: batch_keeps
  ))
from trellis_record r where r.id in (select value from json_each(?))

-- name: due_peek
-- Whether a lane has any of them.
select 1 from trellis_queue where lane = ? and availability = 'scheduled' and run_at <= ? limit 1

-- name: promote
-- Make delayed jobs claimable, or let them wait for their key unless they still hold a slot of it;
-- not those of a tenant that have no rank yet.
update trellis_queue
set availability = case when key_hash is null or exists (
      select 1 from trellis_key_slot s where s.job = trellis_queue.job and s.linger_until is null)
    then 'ready' else 'waiting_for_slot' end
where job in (select value from json_each(?)) and availability = 'scheduled' and run_at <= ?
  and (tenant is null or rank is not null)

-- name: past_session_keep
-- Of the sessions that are removed next: whose they were.
insert or ignore into trellis_past_session (id, name, host, pid, ended_at)
select id, name, host, pid, ended_at from trellis_session
where ended_at is not null and ended_at <= ? order by ended_at, number limit ?

-- name: past_session_prune
-- A session that ended before the oldest job was created has run none that is kept.
delete from trellis_past_session
where ended_at < coalesce(
  (select created_at from trellis_job order by seq limit 1), 9223372036854775807)

-- name: prune_sessions
delete from trellis_session where id in (
  select id from trellis_session
  where ended_at is not null and ended_at <= ? order by ended_at, number limit ?)

-- name: prune_sessions_peek
select 1 from trellis_session where ended_at is not null and ended_at <= ? limit 1
