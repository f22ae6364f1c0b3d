-- Store jobs that ask for nothing special and may start at once. An id that is already there is left
-- alone, and nothing is stored while any queue is draining: returns null if all went in, else the ids
-- that did.
-- $1 ids, $2 lanes, $3 policies, $4 payloads, $5 traceparents.
with born as (
  insert into trellis.job (id, lane, policy, schema_version, created_at, payload, traceparent)
  select d.id, d.lane, d.policy, 1, c.now, d.payload, d.traceparent
  from (select trellis.clock() as now) c
  cross join unnest($1::text[], $2::int[], $3::int[], $4::text[], $5::text[])
    d(id, lane, policy, payload, traceparent)
  where not exists (select 1 from trellis.queue_setting where draining)
  on conflict (id) do nothing
  returning seq, id, lane, created_at),
waiting as (
  insert into trellis.queue (
    job, pos, run_at, lane, park, state, version, attempt, claims, generation, crashes, blocked, suspect)
  select seq, seq, created_at, lane, 'ready', 'pending', 1, 0, 0, 0, 0, false, false from born),
journalled as (
  insert into trellis.event (xid, job, at, version, attempt, state, kind)
  select (select pg_current_xact_id()::text::bigint), seq, created_at, 1, 0, 'pending', 'created'
  from born)
select case when count(*) = cardinality($1::text[]) then null else coalesce(array_agg(id), '{}') end from born
