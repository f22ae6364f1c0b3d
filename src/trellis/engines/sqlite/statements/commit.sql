-- Storing decisions, guarded by the version and the fence they were made against.

-- name: commit_close
update trellis_outcome set state = ?, version = ?, finished_at = ?, keep_until = ?
where job = ? and generation = ? and version = ?
  and not exists (select 1 from trellis_queue q where q.job = trellis_outcome.job)
  and not exists (
    select 1 from trellis_outcome n
    where n.job = trellis_outcome.job and n.generation > trellis_outcome.generation)

-- name: commit_end
-- The guard of every settlement: the version and the fence it was decided against.
delete from trellis_queue
where job in (
  select q.job
  from (values (?, ?, ?)) b
  cross join trellis_queue q
    on q.job = b.column1 and q.version = b.column2 and q.token is b.column3)

-- name: commit_move
update trellis_queue
set availability = ?, state = ?, version = ?, generation = ?, attempt = ?, claims = ?, crashes = ?,
    run_at = ?, session = ?, token = ?, claimed_at = ?, asked_at = ?, blocked = ?, suspect = ?,
    error = ?, dedupe = null, look_at = ?
where job = ? and version = ? and token is ?

-- name: commit_outcome
-- A success: no error to keep.
insert into trellis_outcome (
  job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
  result, keep_until
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: commit_outcome_full
insert into trellis_outcome (
  job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
  error, result, keep_until
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: commit_revive
insert into trellis_queue (
  job, run_at, lane, availability, state, version, claims, generation, look_at, attempt, crashes, blocked,
  suspect, key_hash)
select j.seq, b.run_at, j.lane, b.availability, b.state, b.version, b.claims, b.generation, b.look_at, 0, 0,
  0, 0, j.key_hash
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
-- a row whose version or fence does not hold is not stored.
insert into trellis_outcome (
  job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
  result, keep_until
)
select
  q.job, q.generation, ?, q.version + 1, q.attempt, q.claims, q.crashes, q.run_at, b.column4, ?,
  b.column6, b.column5
from (values (?, ?, ?, ?, ?, ?)) b
cross join trellis_queue q
  on q.job = b.column1 and q.version = b.column2 and q.token is b.column3
