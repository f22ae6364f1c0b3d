-- What is there for people who speak SQL: a function that creates jobs, and views to read.

-- The queue and policy that programs last declared for a type: those of jobs created from SQL.
create table trellis.job_type (
  service text not null,
  type    text not null,
  queue   text not null,
  policy  integer not null,
  primary key (service, type)
);

-- The policy of a type that no program has created a job of yet.
insert into trellis.policy (digest, body, active, watch) values (
  '7c4cb8d5e0910fabd545c728433297a305d14d5acf486fcb581c40df7f077b0a',
  '{"activity_timeout":null,"cancel_grace":30000000,"dead_letters":true,"key":null,"max_crashes":3,"on_lost":"retry","on_shutdown":"requeue","retention":{"completed":604800000000,"dead":7776000000000,"failed":2592000000000,"other":604800000000},"retry":{"attempts":5,"cap":31536000000000,"delays":[5000000,30000000,120000000,600000000,1800000000],"factor":2.0,"jitter":0.0,"shape":"list"},"secrets":[],"timeout":null}',
  null, null)
on conflict do nothing;

-- A ULID: 48 bits of milliseconds and 80 random bits in Crockford's base 32. The bits of a UUID that
-- are not random (in its bytes 7 and 9) are left out.
create function trellis.new_job_id() returns text
language sql volatile parallel safe
as $$
  select string_agg(
    substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', (n.bits >> (5 * digit) & 31)::int + 1, 1), ''
    order by n.place, digit desc)
  from (select uuid_send(gen_random_uuid()) as bytes, trellis.clock() / 1000 as ms) r
  cross join lateral (values
    (1, 10, r.ms),
    (2, 8, ('x' || encode(substr(r.bytes, 1, 5), 'hex'))::bit(40)::bigint),
    (3, 8, ('x' || encode(substr(r.bytes, 12, 5), 'hex'))::bit(40)::bigint)) n(place, digits, bits)
  cross join lateral generate_series(0, n.digits - 1) digit
$$;

create function trellis.enqueue(
  service text,
  type text,
  payload jsonb default 'null',
  queue text default null,
  priority integer default 0,
  delay interval default null,
  dedupe text default null,
  idempotency_key text default null,
  run_at timestamptz default null,
  deadline interval default null,
  tags jsonb default null,
  traceparent text default null
) returns text
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  kind trellis.job_type;
  lane_id integer;
  dedupe_mark text := enqueue.service || '/' || enqueue.type || '/' || enqueue.dedupe;
  idempotency_mark text := enqueue.service || '/' || enqueue.type || '/' || enqueue.idempotency_key;
  found_id text;
  found_payload text;
  new_id text;
  new_seq bigint;
  now_at bigint;
  start_at bigint;
  end_at bigint;
begin
  if coalesce(enqueue.service !~ '^[A-Za-z][A-Za-z0-9_-]{0,62}$', true)
    or enqueue.service in ('workers', 'trellis')
    or coalesce(enqueue.type !~ '^[A-Za-z][A-Za-z0-9_-]{0,62}$', true)
    or enqueue.queue !~ '^[A-Za-z][A-Za-z0-9_-]{0,62}$'
  then
    raise exception '%/% in queue % cannot be a job', enqueue.service, enqueue.type, enqueue.queue
      using errcode = 'invalid_parameter_value',
        hint = 'A name is a letter, then letters, digits, _ or -, at most 63 characters.';
  end if;
  if coalesce(enqueue.priority not between -4 and 4, true) then
    raise exception 'priority % is out of range', enqueue.priority
      using errcode = 'invalid_parameter_value', hint = 'Use -4 (last) to 4 (first).';
  end if;
  if length(enqueue.dedupe) not between 1 and 512
    or length(enqueue.idempotency_key) not between 1 and 512
  then
    raise exception 'dedupe and idempotency_key have 1 to 512 characters'
      using errcode = 'invalid_parameter_value';
  end if;
  if enqueue.payload is null or octet_length(enqueue.payload::text) > 1048576 then
    raise exception 'the payload must be JSON of at most 1 MiB; without one, write ''null'''
      using errcode = 'invalid_parameter_value';
  end if;
  if enqueue.delay is not null and enqueue.run_at is not null then
    raise exception 'delay and run_at exclude each other' using errcode = 'invalid_parameter_value';
  end if;
  if enqueue.traceparent !~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' then
    raise exception 'traceparent is not one of W3C Trace Context, version 00'
      using errcode = 'invalid_parameter_value';
  end if;
  if enqueue.tags is not null and (jsonb_typeof(enqueue.tags) <> 'object' or exists (
    select 1 from jsonb_each(case jsonb_typeof(enqueue.tags) when 'object' then enqueue.tags else '{}' end) t
    where jsonb_typeof(t.value) <> 'string'))
  then
    raise exception 'tags must be a JSON object of texts' using errcode = 'invalid_parameter_value';
  end if;

  select t.* into kind from trellis.job_type t
  where t.service = enqueue.service and t.type = enqueue.type;
  if kind.policy is null then
    select p.id into strict kind.policy from trellis.policy p where p.digest = '7c4cb8d5e0910fabd545c728433297a305d14d5acf486fcb581c40df7f077b0a';
  end if;
  kind.queue := coalesce(enqueue.queue, kind.queue, enqueue.type);
  if (select p.active from trellis.policy p where p.id = kind.policy) is not null then
    raise exception '%/% has a key per job, which SQL cannot derive', enqueue.service, enqueue.type
      using errcode = 'feature_not_supported', hint = 'Create it from Python, with tx= if need be.';
  end if;

  -- The gates of everybody who creates, in their order; an old snapshot would not see what they keep.
  if dedupe_mark is not null or idempotency_mark is not null then
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
      raise exception 'dedupe and idempotency_key need a READ COMMITTED transaction'
        using errcode = 'feature_not_supported';
    end if;
    if dedupe_mark is not null then
      perform pg_advisory_xact_lock(hashtextextended('trellis/gate/dedupe/' || dedupe_mark, 0));
    end if;
    if idempotency_mark is not null then
      perform pg_advisory_xact_lock(
        hashtextextended('trellis/gate/idempotency/' || idempotency_mark, 0));
      select j.id, j.payload into found_id, found_payload
      from trellis.idempotency i join trellis.job j on j.seq = i.job where i.mark = idempotency_mark;
      if found_id is not null then
        if found_payload::jsonb is distinct from enqueue.payload then
          raise exception 'job % has the same idempotency key and another payload', found_id
            using errcode = 'unique_violation', hint = 'Use another idempotency key.';
        end if;
        return found_id;
      end if;
    end if;
    select j.id into found_id
    from trellis.queue q join trellis.job j on j.seq = q.job where q.dedupe = dedupe_mark;
    if found_id is not null then
      return found_id;
    end if;
  end if;
  if exists (select 1 from trellis.queue_setting s
             where s.service = enqueue.service and s.queue = kind.queue and s.draining) then
    raise exception 'queue %/% is draining and takes no new jobs', enqueue.service, kind.queue
      using errcode = 'object_not_in_prerequisite_state';
  end if;

  loop
    select l.id into lane_id from trellis.lane l
    where l.service = enqueue.service and l.queue = kind.queue and l.type = enqueue.type
      and l.priority = enqueue.priority;
    exit when lane_id is not null;
    insert into trellis.lane (service, queue, type, priority)
    values (enqueue.service, kind.queue, enqueue.type, enqueue.priority) on conflict do nothing;
  end loop;

  now_at := trellis.clock();
  start_at := greatest(now_at, coalesce(
    (extract(epoch from enqueue.run_at) * 1000000)::bigint,
    now_at + (extract(epoch from enqueue.delay) * 1000000)::bigint,
    now_at));
  end_at := now_at + (extract(epoch from enqueue.deadline) * 1000000)::bigint;
  new_id := trellis.new_job_id();
  insert into trellis.job (
    id, lane, policy, schema_version, created_at, payload, traceparent, deadline_at, tags)
  values (
    new_id, lane_id, kind.policy, 1, now_at, enqueue.payload::text,
    coalesce(enqueue.traceparent,
      '00-' || replace(gen_random_uuid()::text, '-', '') || '-'
      || encode(substr(uuid_send(gen_random_uuid()), 1, 8), 'hex') || '-00'),
    end_at, nullif(enqueue.tags, '{}')::text)
  returning seq into new_seq;
  insert into trellis.queue (
    job, pos, run_at, lane, park, state, version, attempt, claims, generation, crashes, blocked,
    suspect, dedupe, look_at)
  values (
    new_seq, new_seq, start_at, lane_id,
    case when start_at > now_at then 'later' else 'ready' end::trellis.park,
    'pending', 1, 0, 0, 0, 0, false, false, dedupe_mark, end_at);
  if idempotency_mark is not null then
    insert into trellis.idempotency (mark, job) values (idempotency_mark, new_seq);
  end if;
  insert into trellis.event (xid, job, at, version, attempt, state, kind, data)
  values (
    pg_current_xact_id()::text::bigint, new_seq, now_at, 1, 0, 'pending', 'created',
    case when start_at > now_at then json_build_object('run_at', start_at)::text end);
  perform pg_notify(split_part('trellis.job', '.', 1) || '_ready', '');
  return new_id;
end
$$;

comment on function trellis.enqueue is
  'Create a job in this transaction and return its id; with dedupe or idempotency_key, perhaps that '
  'of an earlier job. Queue and policy are those the type was last created with from Python.';

-- `live` is a constant of each half, so "where live" never reads what has ended.
create view trellis.jobs as
select
  j.id, l.service, l.type, l.queue, q.state::text as state, true as live, q.attempt, l.priority,
  j.key, replace(j.tags, '\u0000', '\ufffd')::jsonb as tags,
  to_timestamp(j.created_at / 1000000.0) as created_at,
  to_timestamp(q.run_at / 1000000.0) as run_at,
  to_timestamp(j.deadline_at / 1000000.0) as deadline_at,
  to_timestamp(q.claimed_at / 1000000.0) as claimed_at,
  to_timestamp(n.began_at / 1000000.0) as started_at,
  null::timestamptz as finished_at,
  n.phase, s.name as worker, q.asked_at is not null as cancel_asked, q.blocked,
  replace(q.error, '\u0000', '\ufffd')::json ->> 0 as error_code,
  replace(q.error, '\u0000', '\ufffd')::json ->> 1 as error_message,
  coalesce(j.request_id, j.id) as request_id, substr(j.traceparent, 4, 32) as trace_id, j.clone_of
from trellis.queue q
join trellis.job j on j.seq = q.job
join trellis.lane l on l.id = j.lane
left join trellis.note n on n.job = q.job and n.claim = q.claims
left join trellis.session s on s.id = q.session
union all
select
  j.id, l.service, l.type, l.queue, o.state::text, false, o.attempt, l.priority,
  j.key, replace(j.tags, '\u0000', '\ufffd')::jsonb,
  to_timestamp(j.created_at / 1000000.0),
  to_timestamp(o.run_at / 1000000.0),
  to_timestamp(j.deadline_at / 1000000.0),
  null,
  to_timestamp(o.started_at / 1000000.0),
  to_timestamp(o.finished_at / 1000000.0),
  n.phase, null, false, false,
  replace(o.error, '\u0000', '\ufffd')::json ->> 0,
  replace(o.error, '\u0000', '\ufffd')::json ->> 1,
  coalesce(j.request_id, j.id), substr(j.traceparent, 4, 32), j.clone_of
from trellis.outcome o
join trellis.job j on j.seq = o.job
join trellis.lane l on l.id = j.lane
left join trellis.note n on n.job = o.job and n.claim = o.claims
where not exists (select 1 from trellis.queue q where q.job = o.job)
  and not exists (
    select 1 from trellis.outcome x where x.job = o.job and x.generation > o.generation);

comment on view trellis.jobs is
  'Every job that is kept, as it stands. Add "where live" when only waiting and active jobs matter.';
comment on column trellis.jobs.live is 'Waiting or active, rather than ended.';
comment on column trellis.jobs.attempt is 'Attempts used so far.';
comment on column trellis.jobs.run_at is 'Not before this moment does it start (again).';
comment on column trellis.jobs.claimed_at is 'When a worker took the running attempt.';
comment on column trellis.jobs.started_at is 'When the handler of the latest attempt began.';
comment on column trellis.jobs.worker is 'The worker process that runs it.';

create view trellis.job_items as
select j.id, i.name as item, i.status, i.detail
from trellis.item i join trellis.job j on j.seq = i.job;

comment on view trellis.job_items is 'What the latest attempt of each job said about its items.';

create view trellis.queue_depth as
select
  l.service, l.queue, l.type,
  count(*) filter (where q.state <> 'active' and q.run_at <= c.now) as due,
  count(*) filter (where q.state <> 'active' and q.run_at > c.now) as later,
  count(*) filter (where q.state <> 'active' and q.run_at <= c.now and q.key_hash is not null
                     and q.park <> 'ready') as waiting_for_key,
  count(*) filter (where q.state = 'active') as active,
  to_timestamp(min(q.run_at) filter (where q.state <> 'active' and q.run_at <= c.now) / 1000000.0)
    as due_since
from trellis.queue q
join trellis.lane l on l.id = q.lane
cross join (select trellis.clock() as now) c
group by l.service, l.queue, l.type;

comment on view trellis.queue_depth is 'How many jobs wait and run, per type; only types that have any.';
comment on column trellis.queue_depth.due is 'May start now; those that wait for their key included.';
comment on column trellis.queue_depth.due_since is 'Since when the oldest of them could have started.';

create view trellis.workers as
select
  lpad(to_hex(s.id), 16, '0') as id, s.name, s.host, s.pid, s.version,
  case when s.ended_at is not null then 'ended'
       when s.lease_until <= trellis.clock() then 'silent'
       when s.draining then 'draining'
       else 'live' end as state,
  s.busy, (select count(*) from trellis.queue q where q.session = s.id) as held,
  to_timestamp(s.opened_at / 1000000.0) as opened_at,
  to_timestamp(s.renewed_at / 1000000.0) as renewed_at,
  to_timestamp(s.ended_at / 1000000.0) as ended_at
from trellis.session s;

comment on view trellis.workers is
  'Worker processes. silent: its lease is over, and nobody has taken its jobs yet.';
comment on column trellis.workers.held is 'Jobs it has claimed, running or not.';
