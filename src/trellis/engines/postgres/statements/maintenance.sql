-- What the clock makes due, promotion, retention, removal.

-- fragment: due_holders
-- The sessions that hold any job, found by stepping through the index from one to the next: there
-- are few, however many jobs wait.
with recursive holder(session) as (
  (select min(q.session) from trellis.queue q where q.session is not null)
  union all
  select (select min(q.session) from trellis.queue q
          where q.session is not null and q.session > h.session)
  from holder h where h.session is not null),

-- name: due_jobs
-- Jobs with a timer that is due: waiting ones by their own index, running ones of
-- each session that holds any.
-- include: due_holders
due as materialized (
  (select q.look_at, q.job from trellis.queue q
   where q.session is null and q.look_at is not null and q.look_at <= $1
   order by q.look_at, q.job limit $2)
  union all
  select x.look_at, x.job from holder h cross join lateral (
    select q.look_at, q.job from trellis.queue q
    where q.session is not null and q.session = h.session and q.look_at <= $1
    order by q.look_at, q.job limit $2) x)
select r.* from (select look_at, job from due order by look_at, job limit $2) d
cross join lateral (select * from trellis.record x where x.seq = d.job limit 1) r
order by d.look_at, d.job

-- name: due_scheduled
-- Delayed jobs of these lanes whose time has come, the earliest first: $3 of each lane, $4 in all.
-- Without $4 it is for a claim, and leaves paused queues out.
select d.job, d.key_hash, l.lane, d.tenant, d.weight from unnest($1::int[]) l(lane) cross join lateral (
  select q.run_at, q.job, q.key_hash, case when q.rank is null then q.tenant end as tenant, q.weight
  from trellis.queue q
  where q.lane = l.lane and q.availability = 'scheduled' and q.run_at <= $2
  order by q.run_at, q.job limit $3) d
where $4::bigint is not null or not exists (
  select 1 from trellis.lane n
  join trellis.queue_setting p on p.service = n.service and p.queue = n.queue
  where n.id = l.lane and p.paused)
order by d.run_at, d.job limit $4

-- name: due_lost
-- Attempts of sessions that are over.
-- include: due_holders
lost as materialized (
  select h.session from holder h
  where h.session is not null and not exists (
    select 1 from trellis.session s where s.id = h.session and s.ended_at is null)),
found as materialized (
  select q.job from lost l cross join lateral (
    select x.job from trellis.queue x
    where x.session is not null and x.session = l.session and not x.blocked) q
  order by q.job limit $1)
select r.* from found f
cross join lateral (select * from trellis.record x where x.seq = f.job limit 1) r
order by f.job

-- name: due_sessions
select id from trellis.session
where ended_at is null and lease_until <= $1 order by number limit $2

-- name: next_due
-- The first of each lane comes from the index; there are as many lanes as kinds of jobs. Jobs of keys
-- with a rate wait for their next token.
select least(
  (select min(d.run_at) from trellis.lane l cross join lateral (
    select q.run_at from trellis.queue q
    where q.lane = l.id and q.availability = 'scheduled' order by q.run_at limit 1) d),
  (select w.at from trellis.key_wake w order by w.at limit 1))

-- name: promote
-- Make delayed jobs claimable, or let them wait for their key unless they still hold a slot of it;
-- not those of a tenant that have no rank yet.
with due as materialized (
  select q.ctid as tid from unnest($1::bigint[]) n(job) cross join lateral (
    select x.ctid from trellis.queue x
    where x.job = n.job and x.availability = 'scheduled' and x.run_at <= $2
      and (x.tenant is null or x.rank is not null)
    for update skip locked) q)
update trellis.queue q
set availability = case when q.key_hash is null or exists (
      select 1 from trellis.key_slot s where s.job = q.job and s.linger_until is null)
    then 'ready' else 'waiting_for_slot' end::trellis.availability
from due where q.ctid = due.tid
returning q.job

-- name: prune_dependency
delete from trellis.dependency where job = any($1::bigint[])

-- name: prune_dependent
delete from trellis.dependency where prerequisite = any($1::bigint[])

-- name: prune_event
delete from trellis.event where job = any($1::bigint[])

-- name: prune_idempotency
delete from trellis.idempotency where job = any($1::bigint[])

-- name: prune_item
delete from trellis.item where job = any($1::bigint[])

-- name: prune_job
delete from trellis.job where seq = any($1::bigint[])

-- name: prune_log
delete from trellis.log where job = any($1::bigint[])

-- name: prune_note
delete from trellis.note where job = any($1::bigint[])

-- name: prune_outcome
delete from trellis.outcome where job = any($1::bigint[])

-- name: prune_pick
-- What batches keep is asked for each row: as a join, it would be read for all outcomes.
with reading(state) as (select unnest($1::text[])::trellis.state)
select o.job, j.id, o.state::text, l.service
from trellis.outcome o join trellis.job j on j.seq = o.job join trellis.lane l on l.id = j.lane
where o.keep_until is not null and o.keep_until <= $2
  and not exists (select 1 from trellis.queue q where q.job = o.job)
  and not exists (
    select 1 from trellis.dependency d join trellis.queue q on q.job = d.job
    where d.prerequisite = o.job)
  and not coalesce((
    select bool_or(
-- include: batch_keeps
    ) from trellis.batch_member m join trellis.batch b on b.seq = m.batch
    where m.job = o.job), false)
order by o.keep_until, o.job limit $3 for update of o skip locked

-- name: prune_archive_queue
delete from trellis.archive_queue where job = any($1::bigint[])

-- name: prune_removals
-- What is known of jobs that were removed long ago.
delete from trellis.removal r using (
  select x.id from trellis.removal x where x.removed_at <= $1 order by x.removed_at, x.id limit $2) old
where r.id = old.id

-- name: prune_removal
insert into trellis.removal (id, state, removed_at)
select id, state, removed_at
from unnest($1::text[], $2::text[], $3::bigint[]) n(id, state, removed_at)
on conflict (id) do update set state = excluded.state, removed_at = excluded.removed_at

-- name: past_session_keep
-- Of the sessions that are removed next: whose they were.
insert into trellis.past_session (id, name, host, pid, ended_at)
select id, name, host, pid, ended_at from trellis.session
where ended_at is not null and ended_at <= $1 order by ended_at, number limit $2
on conflict do nothing

-- name: past_session_prune
-- A session that ended before the oldest job was created has run none that is kept.
delete from trellis.past_session
where ended_at < coalesce(
  (select created_at from trellis.job order by seq limit 1), 9223372036854775807)

-- name: prune_sessions
with old as materialized (
  select ctid as tid from trellis.session
  where ended_at is not null and ended_at <= $1 order by ended_at, number limit $2)
delete from trellis.session s using old where s.ctid = old.tid returning 1

-- name: remove_look
-- A live job has a row in the queue; an ended one has none. Last: whether a live job follows it, and
-- whether a batch keeps it.
with reading(state) as (select unnest($1::text[])::trellis.state)
select j.seq, j.id, o.state::text, q.job is not null, exists (
  select 1 from trellis.dependency d join trellis.queue w on w.job = d.job
  where d.prerequisite = j.seq), exists (
  select 1 from trellis.batch_member m join trellis.batch b on b.seq = m.batch
  where m.job = j.seq and (
-- include: batch_keeps
  ))
from unnest($2::text[]) n(id)
join trellis.job j on j.id = n.id
left join trellis.queue q on q.job = j.seq
left join lateral (
  select x.state from trellis.outcome x where x.job = j.seq order by x.generation desc limit 1) o on true

-- name: remove_lock
-- None of these jobs is revived or closed until this transaction ends.
select o.job
from (select j.seq from unnest($1::text[]) n(id) join trellis.job j on j.id = n.id
      order by j.seq offset 0) n
cross join lateral (
  select x.job from trellis.outcome x
  where x.job = n.seq order by x.generation desc limit 1 for update) o
