-- Storing decisions, guarded by the version and the fence they were made against.

-- name: adjust_job
update trellis.job set lane = $1, attempts = $2 where seq = $3

-- name: adjust_queue
-- In another lane a tenant's job gets another rank.
update trellis.queue
set rank = case when lane = $1 then rank end,
    availability = case when lane <> $1 and tenant is not null and session is null
      then 'scheduled' else availability end,
    lane = $1
where job = $2

-- name: commit_close
-- Change the outcome of an ended job; only its last outcome can change.
update trellis.outcome o set state = $1::text::trellis.state, version = $2, finished_at = $3, keep_until = $4
where o.job = $5 and o.generation = $6 and o.version = $7
  and not exists (select 1 from trellis.queue q where q.job = o.job)
  and not exists (select 1 from trellis.outcome n where n.job = o.job and n.generation > o.generation)
returning 1

-- name: commit_done
-- Settle attempts that succeeded, guarded by version and token. Everything the decision does not
-- change is taken from the row it was decided against. Rows are found without a lock, so the delete
-- checks the guards again. A watched job is not ended here. Returns null if every guard held, else
-- the jobs whose did.
-- $1 jobs, $2 versions, $3 tokens, $4 started, $5 results, $6 kept until (one version or moment
-- is used for all if there is only one; numbers as text are faster to send); $7 state, $8 kind, $9 at:
-- the same for all.
with held as materialized (
  select x.tid, x.version, d.token, d.started_at, d.result,
    coalesce(d.keep_until, ($6::bigint[])[1]) as keep_until
  from unnest($1::text::bigint[], $2::int[], $3::text::bigint[], $4::text::bigint[], $5::text[],
              $6::bigint[])
    d(job, version, token, started_at, result, keep_until)
  cross join lateral (
    select q.ctid as tid, q.version from trellis.queue q
    where q.job = d.job and q.version = coalesce(d.version, ($2::int[])[1])
      and q.token = d.token and not q.watched limit 1) x),
gone as (
  delete from trellis.queue q using held h
  where q.ctid = h.tid and q.version = h.version and q.token = h.token and not q.watched
  returning q.job, q.run_at, q.version, q.attempt, q.claims, q.generation, q.crashes, q.policy,
    q.session, q.token, h.started_at, h.result, h.keep_until),
ended as (
  insert into trellis.outcome (
    job, finished_at, run_at, started_at, keep_until, generation, state, version, attempt, claims,
    crashes, policy, result)
  select job, $9::bigint, run_at, started_at, keep_until, generation, $7::text::trellis.state,
    version + 1, attempt, claims, crashes, policy, result
  from gone),
journalled as (
  insert into trellis.event (xid, job, at, session, token, version, attempt, state, kind)
  select (select pg_current_xact_id()::text::bigint), job, $9::bigint, session, token, version + 1,
    attempt, $7::text::trellis.state, $8::text
  from gone)
select case when count(*) = cardinality($1::text::bigint[]) then null else coalesce(array_agg(job), '{}') end from gone

-- name: commit_end
-- End live jobs in any way, guarded by version and token (0: none). Watched jobs are ended only if
-- $21 says so. Returns null if every guard held, else the jobs whose did.
with held as materialized (
  select x.tid, x.policy, d.*
  from unnest($1::bigint[], $2::int[], $3::bigint[], $4::bigint[], $5::text[], $6::text[],
              $7::bigint[], $8::text[], $9::int[], $10::int[], $11::int[], $12::int[], $13::int[],
              $14::bigint[], $15::bigint[], $16::text[], $17::text[], $18::int[], $19::bigint[],
              $20::bigint[])
    d(job, before, fence, started_at, result, error, keep_until, state, version, attempt, claims,
      generation, crashes, run_at, finished_at, kind, data, event_attempt, event_session,
      event_token)
  cross join lateral (
    select q.ctid as tid, q.policy from trellis.queue q
    where q.job = d.job and q.version = d.before and coalesce(q.token, 0) = d.fence
      and ($21::bool or not q.watched)
    for update) x),
gone as (
  delete from trellis.queue q using held h where q.ctid = h.tid returning h.*),
ended as (
  insert into trellis.outcome (
    job, finished_at, run_at, started_at, keep_until, generation, state, version, attempt, claims,
    crashes, policy, result, error)
  select job, finished_at, run_at, started_at, keep_until, generation, state::trellis.state,
    version, attempt, claims, crashes, policy, result, error
  from gone),
journalled as (
  insert into trellis.event (xid, job, at, session, token, version, attempt, state, kind, data)
  select (select pg_current_xact_id()::text::bigint), job, finished_at, event_session, event_token,
    version, event_attempt, state::trellis.state, kind, data
  from gone)
select case when count(*) = cardinality($1::bigint[]) then null else coalesce(array_agg(job), '{}') end from gone

-- name: commit_move
-- Change live jobs that stay live, guarded by version and token (0: none). Waiting ones are
-- available by their time; one with a key waits until a slot is handed to it. Due at another time, a
-- tenant's job gets another rank; without one it waits for its promotion. Returns null if every guard
-- held, else the jobs whose did.
with held as materialized (
  select x.tid, d.*
  from unnest($1::bigint[], $2::int[], $3::bigint[], $4::text[], $5::int[], $6::int[], $7::int[],
              $8::int[], $9::int[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[],
              $14::bigint[], $15::bool[], $16::bool[], $17::text[], $18::bigint[], $19::bigint[],
              $20::text[], $21::text[], $22::int[], $23::bigint[], $24::bigint[], $25::bool[])
    d(job, before, fence, state, version, generation, attempt, claims, crashes, run_at, session,
      token, claimed_at, asked_at, blocked, suspect, error, look_at, at, kind, data, event_attempt,
      event_session, event_token, waits)
  cross join lateral (
    select q.ctid as tid from trellis.queue q
    where q.job = d.job and q.version = d.before and coalesce(q.token, 0) = d.fence
    for update) x),
moved as (
  update trellis.queue q
  set availability = case when h.token is not null then 'claimed'
                  when h.run_at > trellis.clock() then 'scheduled'
                  when q.tenant is not null and (q.rank is null or q.run_at <> h.run_at)
                  then 'scheduled'
                  when h.waits then 'waiting_for_slot' else 'ready' end::trellis.availability,
      state = h.state::trellis.state, version = h.version, generation = h.generation,
      attempt = h.attempt, claims = h.claims, crashes = h.crashes, run_at = h.run_at,
      rank = case when q.run_at = h.run_at then q.rank end,
      session = h.session, token = h.token, claimed_at = h.claimed_at, asked_at = h.asked_at,
      blocked = h.blocked, suspect = h.suspect, error = h.error,
      look_at = h.look_at
  from held h where q.ctid = h.tid
  returning h.*),
journalled as (
  insert into trellis.event (xid, job, at, session, token, version, attempt, state, kind, data)
  select (select pg_current_xact_id()::text::bigint), job, at, event_session, event_token, version,
    event_attempt, state::trellis.state, kind, data
  from moved)
select case when count(*) = cardinality($1::bigint[]) then null else coalesce(array_agg(job), '{}') end from moved

-- name: commit_repark
-- A job that an operator has changed waits on, if it waits for others.
update trellis.queue q set availability = 'waiting_for_jobs'
where q.job = $1 and exists (
  select 1 from trellis.dependency d where d.job = q.job and d.ended is null)

-- name: commit_revive
insert into trellis.queue (
  job, run_at, lane, availability, state, version, attempt, claims, generation, crashes, blocked, suspect,
  key_hash, tenant, weight, look_at, policy)
select j.seq, $2::bigint, j.lane,
  case when j.relations::json ->> 'tenant' is null then $3::text else 'scheduled' end::trellis.availability, $4::text::trellis.state, $5::int, 0,
  $6::int, $7::int, 0, false, false, j.key_hash, j.relations::json ->> 'tenant',
  (j.relations::json ->> 'weight')::int, $8::bigint, (
    select o.policy from trellis.outcome o where o.job = j.seq and o.generation = $7::int - 1)
from trellis.job j where j.seq = $1

-- name: commit_revive_guard
-- Keep the outcome of a job that is revived; only its last outcome can be.
update trellis.outcome o set keep_until = null
where o.job = $1 and o.generation = $2 and o.version = $3
  and not exists (select 1 from trellis.queue q where q.job = o.job)
  and not exists (select 1 from trellis.outcome n where n.job = o.job and n.generation > o.generation)
returning 1

-- name: commit_seen_at
select job, seen_at from trellis.queue where job = any($1::bigint[]) and seen_at is not null
