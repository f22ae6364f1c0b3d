-- Change live jobs that stay live, guarded by version and token (0: none). Waiting ones are parked
-- by their time; one with a key waits for its slot until somebody hands it over. Returns null if
-- every guard held, else the jobs whose did.
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
  set park = case when h.token is not null then 'taken'
                  when h.run_at > trellis.clock() then 'later'
                  when h.waits then 'slot' else 'ready' end::trellis.park,
      state = h.state::trellis.state, version = h.version, generation = h.generation,
      attempt = h.attempt, claims = h.claims, crashes = h.crashes, run_at = h.run_at,
      session = h.session, token = h.token, claimed_at = h.claimed_at, asked_at = h.asked_at,
      blocked = h.blocked, suspect = h.suspect, error = h.error, dedupe = null,
      look_at = h.look_at
  from held h where q.ctid = h.tid
  returning h.*),
journalled as (
  insert into trellis.event (xid, job, at, session, token, version, attempt, state, kind, data)
  select (select pg_current_xact_id()::text::bigint), job, at, event_session, event_token, version,
    event_attempt, state::trellis.state, kind, data
  from moved)
select case when count(*) = cardinality($1::bigint[]) then null else coalesce(array_agg(job), '{}') end from moved
