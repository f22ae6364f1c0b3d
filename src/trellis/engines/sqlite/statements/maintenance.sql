-- What the clock makes due, promotion, retention, removal.

-- name: due_jobs
select r.* from trellis_queue d join trellis_record r on r.seq = d.job
where d.look_at is not null and d.look_at <= ?
order by d.look_at, d.job limit ?

-- name: due_scheduled
-- Delayed jobs of these lanes whose time has come, the earliest first.
-- Parameters: lanes, now, most per lane, most in all; null is no limit.
select q.job, q.key_hash
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
-- The first of each lane comes from the index; there are as many lanes as kinds of jobs.
select min((
  select min(q.run_at) from trellis_queue q where q.lane = l.id and q.availability = 'scheduled'))
from trellis_lane l

-- name: prune_event
delete from trellis_event where job in (values (?))

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

-- name: prune_pick
select o.job, j.id, o.state from trellis_outcome o join trellis_job j on j.seq = o.job
where o.keep_until is not null and o.keep_until <= ? order by o.keep_until, o.job limit ?

-- name: prune_removal
insert or replace into trellis_removal (id, state, removed_at) values (?, ?, ?)

-- name: remove_look
-- A live job has a row in the queue; an ended one has none.
select seq, id, state, availability is not null from trellis_record
where id in (select value from json_each(?))

-- name: due_peek
-- Whether a lane has any of them.
select 1 from trellis_queue where lane = ? and availability = 'scheduled' and run_at <= ? limit 1

-- name: promote
-- Make delayed jobs claimable, or let them wait for their key unless they still hold a slot of it.
update trellis_queue
set availability = case when key_hash is null or exists (
      select 1 from trellis_key_slot s where s.job = trellis_queue.job and s.linger_until is null)
    then 'ready' else 'waiting_for_slot' end
where job in (select value from json_each(?)) and availability = 'scheduled' and run_at <= ?

-- name: prune_sessions
delete from trellis_session where id in (
  select id from trellis_session
  where ended_at is not null and ended_at <= ? order by ended_at, number limit ?)

-- name: prune_sessions_peek
select 1 from trellis_session where ended_at is not null and ended_at <= ? limit 1
