-- Storing decisions, guarded by the version and the fence they were made against.

-- name: adjust_job
update trellis_job set lane = ?, attempts = ? where seq = ?

-- name: adjust_queue
-- In another lane a tenant's job gets another rank.
update trellis_queue
set rank = case when lane = ? then rank end,
    availability = case when lane <> ? and tenant is not null and session is null
      then 'scheduled' else availability end,
    lane = ?
where job = ?

-- name: commit_close
update trellis_outcome set state = ?, version = ?, finished_at = ?, keep_until = ?
where job = ? and generation = ? and version = ?
  and not exists (select 1 from trellis_queue q where q.job = trellis_outcome.job)
  and not exists (
    select 1 from trellis_outcome n
    where n.job = trellis_outcome.job and n.generation > trellis_outcome.generation)

-- name: commit_end
-- The guard of every settlement: the version and the fence it was decided against. Watched jobs are
-- ended only if the last value says so.
delete from trellis_queue
where job in (
  select q.job
  from (values (?, ?, ?, ?)) b
  cross join trellis_queue q
    on q.job = b.column1 and q.version = b.column2 and q.token is b.column3
   and (b.column4 or not q.watched))

-- name: commit_move
-- Due at another time, a tenant's job gets another rank; without one it waits for its promotion.
update trellis_queue
set availability = case when tenant is not null and ? and (rank is null or run_at <> ?)
      then 'scheduled' else ? end,
    rank = case when run_at = ? then rank end, state = ?, version = ?, generation = ?, attempt = ?, claims = ?, crashes = ?,
    run_at = ?, session = ?, token = ?, claimed_at = ?, asked_at = ?, blocked = ?, suspect = ?,
    error = ?, look_at = ?
where job = ? and version = ? and token is ?

-- name: commit_outcome
-- A success: no error to keep.
insert into trellis_outcome (
  job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
  result, keep_until, policy
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: commit_outcome_full
insert into trellis_outcome (
  job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
  error, result, keep_until, policy
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: commit_policies
-- The policies in force, as numbers; read before `commit_end` removes the queue rows.
select job, policy from trellis_queue where job in (select value from json_each(?))

-- name: commit_repark
-- A job that an operator has changed waits on, if it waits for others.
update trellis_queue set availability = 'waiting_for_jobs'
where job = ? and exists (
  select 1 from trellis_dependency d where d.job = trellis_queue.job and d.ended is null)

-- name: commit_revive
insert into trellis_queue (
  job, run_at, lane, availability, state, version, claims, generation, look_at, attempt, crashes, blocked,
  suspect, key_hash, tenant, weight, policy)
select j.seq, b.run_at, j.lane,
  case when json_extract(j.relations, '$.tenant') is null then b.availability else 'scheduled' end, b.state, b.version, b.claims, b.generation, b.look_at, 0, 0,
  0, 0, j.key_hash, json_extract(j.relations, '$.tenant'), json_extract(j.relations, '$.weight'), (
    select o.policy from trellis_outcome o where o.job = j.seq and o.generation = b.generation - 1)
from (select ? as job, ? as run_at, ? as availability, ? as state, ? as version, ? as claims,
        ? as generation, ? as look_at) b
join trellis_job j on j.seq = b.job

-- name: commit_revive_guard
update trellis_outcome set keep_until = null
where job = ? and generation = ? and version = ?
  and not exists (select 1 from trellis_queue q where q.job = trellis_outcome.job)
  and not exists (
    select 1 from trellis_outcome n
    where n.job = trellis_outcome.job and n.generation > trellis_outcome.generation)

-- name: commit_seen_at
select seen_at from trellis_queue where job = ?

-- name: success_end
delete from trellis_queue where job in (select value from json_each(?))

-- name: success_event
insert into trellis_event (job, version, kind, state, at, attempt, session, token)
select q.job, q.version + 1, ?, ?, ?, q.attempt, q.session, q.token
from json_each(?) b
cross join trellis_queue q on q.job = b.value

-- name: success_outcome
-- Successes that differ from their queue rows only in what is given here. Guarded like `commit_end`:
-- a row whose version or fence does not hold, or that is watched, is not stored.
insert into trellis_outcome (
  job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
  result, keep_until, policy
)
select
  q.job, q.generation, ?, q.version + 1, q.attempt, q.claims, q.crashes, q.run_at, b.column4, ?,
  b.column6, b.column5, q.policy
from (values (?, ?, ?, ?, ?, ?)) b
cross join trellis_queue q
  on q.job = b.column1 and q.version = b.column2 and q.token is b.column3 and not q.watched
