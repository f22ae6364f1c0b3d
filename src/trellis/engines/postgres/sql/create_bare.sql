-- Store jobs that ask for nothing special and may start at once; none of their ids is there. Returns
-- how many were stored: none while any queue is draining.
-- $1 ids, $2 payloads, $3 traceparents, each joined by U+001F; $4 lanes and $5 policies, where one
-- stands for all if there is only one; $6 the channel to tell it on, if it is to be told at once.
with born as (
  insert into trellis.job (id, lane, policy, schema_version, created_at, payload, traceparent)
  select d.id, coalesce(d.lane, ($4::int[])[1]), coalesce(d.policy, ($5::int[])[1]), 1, c.now,
    d.payload, d.traceparent
  from (select trellis.clock() as now) c
  cross join unnest(string_to_array($1::text, e'\x1f'), string_to_array($2::text, e'\x1f'),
                    string_to_array($3::text, e'\x1f'), $4::int[], $5::int[])
    d(id, payload, traceparent, lane, policy)
  where not exists (select 1 from trellis.queue_setting where draining)
  returning seq, lane, created_at),
waiting as (
  insert into trellis.queue (
    job, pos, run_at, lane, park, state, version, attempt, claims, generation, crashes, blocked, suspect)
  select seq, seq, created_at, lane, 'ready', 'pending', 1, 0, 0, 0, 0, false, false from born),
journalled as (
  insert into trellis.event (xid, job, at, version, attempt, state, kind)
  select (select pg_current_xact_id()::text::bigint), seq, created_at, 1, 0, 'pending', 'created'
  from born)
select count(*), case when $6::text is not null then pg_notify($6, '')::text end from born
