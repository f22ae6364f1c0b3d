-- End live jobs in any way, guarded by version and token (0: none). Returns null if every guard
-- held, else the jobs whose did.
with held as materialized (
  select x.tid, x.session, x.token, d.*
  from unnest($1::bigint[], $2::int[], $3::bigint[], $4::bigint[], $5::text[], $6::text[],
              $7::bigint[], $8::text[], $9::int[], $10::int[], $11::int[], $12::int[], $13::int[],
              $14::bigint[], $15::bigint[], $16::text[], $17::text[], $18::int[], $19::bigint[],
              $20::bigint[])
    d(job, before, fence, started_at, result, error, keep_until, state, version, attempt, claims,
      generation, crashes, run_at, finished_at, kind, data, event_attempt, event_session,
      event_token)
  cross join lateral (
    select q.ctid as tid, q.session, q.token from trellis.queue q
    where q.job = d.job and q.version = d.before and coalesce(q.token, 0) = d.fence
    for update) x),
gone as (
  delete from trellis.queue q using held h where q.ctid = h.tid returning h.*),
ended as (
  insert into trellis.outcome (
    job, finished_at, run_at, started_at, keep_until, generation, state, version, attempt, claims,
    crashes, result, error)
  select job, finished_at, run_at, started_at, keep_until, generation, state::trellis.state,
    version, attempt, claims, crashes, result, error
  from gone),
journalled as (
  insert into trellis.event (xid, job, at, session, token, version, attempt, state, kind, data)
  select (select pg_current_xact_id()::text::bigint), job, finished_at, event_session, event_token,
    version, event_attempt, state::trellis.state, kind, data
  from gone)
select case when count(*) = cardinality($1::bigint[]) then null else coalesce(array_agg(job), '{}') end from gone
