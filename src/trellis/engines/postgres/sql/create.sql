-- Store jobs of any kind, in the order given; none of their ids or marks is there. Returns how many
-- were stored: none, if $22 says so while any queue is draining.
with given as materialized (
  select d.*, nextval('trellis.job_seq_seq') as seq, c.now,
    greatest(c.now, coalesce(d.asked_at, c.now + d.delay)) as run_at,
    coalesce(d.deadline, c.now + d.deadline_in) as deadline_at
  from (select trellis.clock() as now) c
  cross join unnest(
    $1::text[], $2::int[], $3::int[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
    $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::text[], $15::text[],
    $16::text[], $17::text[], $18::int[], $19::text[], $20::text[])
    d(id, lane, policy, payload, request_id, traceparent, tracestate, asked_at, delay, deadline,
      deadline_in, key, key_hash, tags, config, expect, clone_of, schema_version, dedupe,
      idempotency)
  where not ($22::bool and exists (select 1 from trellis.queue_setting where draining))),
born as (
  insert into trellis.job (
    seq, id, lane, policy, schema_version, created_at, payload, request_id, traceparent,
    tracestate, deadline_at, key, key_hash, tags, config, expect, clone_of)
  select seq, id, lane, policy, schema_version, now, payload, request_id, traceparent,
    tracestate, deadline_at, key, key_hash, tags, config, expect, clone_of
  from given),
waiting as (
  insert into trellis.queue (
    job, pos, run_at, lane, park, state, version, attempt, claims, generation, crashes, blocked, suspect,
    key_hash, dedupe, look_at)
  select seq, seq, run_at, lane,
    case when run_at > now then 'later'
         when key_hash is not null then $21::text
         else 'ready' end::trellis.park,
    'pending', 1, 0, 0, 0, 0, false, false, key_hash, dedupe, deadline_at
  from given),
marked as (
  insert into trellis.idempotency (mark, job)
  select idempotency, seq from given where idempotency is not null),
journalled as (
  insert into trellis.event (xid, job, at, version, attempt, state, kind, data)
  select (select pg_current_xact_id()::text::bigint), seq, now, 1, 0, 'pending', 'created',
    case when run_at > now then json_build_object('run_at', run_at)::text end
  from given)
select count(*) from given
