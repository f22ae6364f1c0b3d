-- Settle attempts that succeeded, guarded by version and token. Everything the decision does not
-- change is taken from the row it was decided against. Rows are found without a lock, so the delete
-- asks for the guards again. Returns null if every guard held, else the jobs whose did.
-- $1 jobs, $2 versions, $3 tokens, $4 started, $5 results, $6 kept until (one version or moment
-- stands for all if there is only one; numbers as text are faster to send); $7 state, $8 kind, $9 at:
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
      and q.token = d.token limit 1) x),
gone as (
  delete from trellis.queue q using held h
  where q.ctid = h.tid and q.version = h.version and q.token = h.token
  returning q.job, q.run_at, q.version, q.attempt, q.claims, q.generation, q.crashes, q.session,
    q.token, h.started_at, h.result, h.keep_until),
ended as (
  insert into trellis.outcome (
    job, finished_at, run_at, started_at, keep_until, generation, state, version, attempt, claims,
    crashes, result)
  select job, $9::bigint, run_at, started_at, keep_until, generation, $7::text::trellis.state,
    version + 1, attempt, claims, crashes, result
  from gone),
journalled as (
  insert into trellis.event (xid, job, at, session, token, version, attempt, state, kind)
  select (select pg_current_xact_id()::text::bigint), job, $9::bigint, session, token, version + 1,
    attempt, $7::text::trellis.state, $8::text
  from gone)
select case when count(*) = cardinality($1::text::bigint[]) then null else coalesce(array_agg(job), '{}') end from gone
