-- Taking due jobs for a session.

-- name: claim_event
insert into trellis_event (job, version, kind, state, at, attempt, session, token)
select q.job, q.version, 'started', q.state, q.claimed_at, q.attempt, q.session, q.token
from json_each(?) b
cross join trellis_queue q on q.job = b.value

-- name: claim_peek
select 1 where exists (select 1 from trellis_queue where lane = ? and availability = 'ready')

-- name: claim_pick
-- A waiting job is looked at when its deadline comes: from then on it is no longer claimable.
select coalesce(rank, run_at), job from trellis_queue
where lane = ? and availability = 'ready' and (look_at is null or look_at > ?)
order by coalesce(rank, run_at), job

-- name: claim_pick_few
-- The same for one lane alone: nothing to merge, so SQLite applies the limit, and the list
-- is passed to the next statements unchanged.
select json_group_array(job)
from (
  select job from trellis_queue
  where lane = ? and availability = 'ready' and (look_at is null or look_at > ?)
  order by coalesce(rank, run_at), job limit ?)

-- name: claim_rows
-- The jobs of a list of numbers, with what a claim must know of them, as one row: a thread must ask
-- for the interpreter after every row, and may wait longer for it than for SQLite. What all jobs
-- have is in `facts`, one list each; the payloads follow one another, with their lengths in the
-- facts; what few jobs have is in `extras`, by number.
select
  json_group_array(json_array(
    q.job, j.id, j.lane, j.policy, length(j.payload), j.created_at, j.traceparent,
    j.schema_version, q.version, q.generation, q.attempt, q.claims, q.crashes, q.run_at,
    q.suspect, q.policy)) as facts,
  group_concat(j.payload, '') as payloads,
  json_group_array(distinct j.lane) as lanes,
  json_group_array(distinct j.policy) as policies,
  json_group_array(distinct q.policy) filter (where q.policy is not null) as declared,
  json_group_object(q.job, json_array(
    j.request_id, j.tracestate, j.deadline_at, j.key, j.key_hash, j.tags, j.config, j.expect,
    j.clone_of, j.attempts, j.timeout, q.error, j.dedupe, j.dedupe_while,
    j.dedupe_until, j.relations)) filter (
      where coalesce(
        j.request_id, j.tracestate, j.deadline_at, j.key, j.key_hash, j.tags, j.config, j.expect,
        j.clone_of, j.attempts, j.timeout, q.error, j.dedupe, j.relations) is not null) as extras
from json_each(?) picked
cross join trellis_queue q on q.job = picked.value
cross join trellis_job j on j.seq = q.job

-- name: claim_settings
-- What keeps a claim from lanes: queues that are paused, and whether there are limits.
select 'paused', service, queue from trellis_queue_setting where paused
union all
select 'limit', '', '' where exists (select 1 from trellis_job_limit)

-- name: claim_slot
update trellis_key_slot set session = ?, token = ?
where job = ? and token is null and linger_until is null

-- name: claim_take
-- The token of a claim: one random start for the list, and the number of the job. The policy is
-- the one that the worker declares; null: the one in force stays.
update trellis_queue
set availability = 'claimed', state = 'active', version = version + 1, attempt = attempt + 1,
    claims = claims + 1, token = ? + job, session = ?, claimed_at = ?, policy = coalesce(?, policy),
    dedupe = case when dedupe_unfinished then dedupe end, seen_at = null, look_at = null
where job in (select value from json_each(?))

-- name: claim_watch
update trellis_queue set look_at = ? where job = ?
