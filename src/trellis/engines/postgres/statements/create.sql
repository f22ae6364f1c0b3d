-- Storing new jobs.

-- name: create
-- Store jobs of any kind, in the order given; none of their ids or marks is there. Returns how many
-- were stored: none, if $28 says so while any queue is draining. $29 the ranks of tenants' jobs; one that
-- has none yet waits for its promotion.
with given as materialized (
  select d.*, nextval('trellis.job_seq_seq') as seq, c.now,
    greatest(c.now, coalesce(d.asked_at, c.now + d.delay)) as run_at,
    coalesce(d.deadline, c.now + d.deadline_in) as deadline_at,
    d.relations::json ->> 'tenant' as tenant, (d.relations::json ->> 'weight')::int as weight
  from (select trellis.clock() as now) c
  cross join unnest(
    $1::text[], $2::int[], $3::int[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
    $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::text[], $15::text[],
    $16::text[], $17::text[], $18::int[], $19::text[], $20::text[], $21::text[], $22::bigint[],
    $23::int[], $24::bigint[], $25::text[], $26::bool[], $29::bigint[])
    d(id, lane, policy, payload, request_id, traceparent, tracestate, asked_at, delay, deadline,
      deadline_in, key, key_hash, tags, config, expect, clone_of, schema_version, dedupe,
      idempotency, dedupe_while, dedupe_for, attempts, timeout, relations, watched, rank)
  where not ($28::bool and exists (select 1 from trellis.queue_setting where draining))),
born as (
  insert into trellis.job (
    seq, id, lane, policy, schema_version, created_at, payload, request_id, traceparent,
    tracestate, deadline_at, key, key_hash, tags, config, expect, clone_of, dedupe, dedupe_while,
    dedupe_until, attempts, timeout, relations)
  select seq, id, lane, policy, schema_version, now, payload, request_id, traceparent,
    tracestate, deadline_at, key, key_hash, tags, config, expect, clone_of, dedupe, dedupe_while,
    now + dedupe_for, attempts, timeout, relations
  from given),
waiting as (
  insert into trellis.queue (
    job, run_at, lane, availability, state, version, attempt, claims, generation, crashes, blocked, suspect,
    key_hash, dedupe, dedupe_unfinished, look_at, watched, tenant, weight, rank)
  select seq, run_at, lane,
    case when run_at > now or (tenant is not null and rank is null) then 'scheduled'
         when key_hash is not null then $27::text
         else 'ready' end::trellis.availability,
    'pending', 1, 0, 0, 0, 0, false, false, key_hash,
    case when dedupe_while is not null then dedupe end, nullif(dedupe_while = 'unfinished', false),
    deadline_at, watched, tenant, weight, rank
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

-- name: create_bare
-- Store jobs without options that may start at once; none of their ids is there. Returns
-- how many were stored: none while any queue is draining.
-- $1 ids, $2 payloads, $3 traceparents, each joined by U+001F; $4 lanes and $5 policies, where one
-- is used for all jobs if there is only one; $6 the channel to notify, if that is to be done at once.
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
    job, run_at, lane, availability, state, version, attempt, claims, generation, crashes, blocked, suspect)
  select seq, created_at, lane, 'ready', 'pending', 1, 0, 0, 0, 0, false, false from born),
journalled as (
  insert into trellis.event (xid, job, at, version, attempt, state, kind)
  select (select pg_current_xact_id()::text::bigint), seq, created_at, 1, 0, 'pending', 'created'
  from born)
select count(*), case when $6::text is not null then pg_notify($6, '')::text end from born

-- name: create_known
-- Which of these ids and marks are already stored: kind (0 id, 1 idempotency, 2 dedupe by its queue
-- row, 4 dedupe by its period), the name, the job's id, and what it is. And the queues that accept
-- nothing new: kind 3, service, queue. $1 ids, $2 idempotency marks, $3 dedupe marks, $4 now.
select 0, j.id, j.id, l.service, l.type, j.payload
from unnest($1::text[]) n(id) join trellis.job j on j.id = n.id join trellis.lane l on l.id = j.lane
union all
select 1, i.mark, j.id, null, null, j.payload
from unnest($2::text[]) n(mark)
join trellis.idempotency i on i.mark = n.mark join trellis.job j on j.seq = i.job
union all
select 2, q.dedupe, j.id, null, null, null
from unnest($3::text[]) n(mark)
join trellis.queue q on q.dedupe = n.mark join trellis.job j on j.seq = q.job
union all
select 4, j.dedupe, j.id, null, null, null
from unnest($3::text[]) n(mark)
join trellis.job j on j.dedupe = n.mark and j.dedupe_until > $4::bigint
union all
select 3, s.service, s.queue, null, null, null from trellis.queue_setting s where s.draining

-- name: gate
-- Keep other transactions from creating jobs with the same keys or marks until this one ends; in the
-- same order everywhere, so that two transactions never wait for each other.
select pg_advisory_xact_lock(hashtextextended('trellis/gate/' || g.name, 0))
from (select name from unnest($1::text[]) n(name) order by name offset 0) g

-- name: gate_try
-- `gate` without waiting: false if another transaction holds it.
select coalesce(bool_and(pg_try_advisory_xact_lock(hashtextextended('trellis/gate/' || g.name, 0))), true)
from (select name from unnest($1::text[]) n(name) order by name offset 0) g
