-- Everything Trellis keeps. Names carry the prefix trellis_ because the file may be the
-- application's own database.

create table trellis_meta (
  name  text primary key,
  value integer not null
) without rowid;

insert into trellis_meta (name, value) values ('last_job', 0);

-- (service, queue, type, priority): what a claim scans. A job points at its lane.
create table trellis_lane (
  id       integer primary key,
  service  text not null,
  queue    text not null,
  type     text not null,
  priority integer not null,
  unique (service, queue, type, priority)
);

-- Policies by value: thousands of jobs share one row.
create table trellis_policy (
  id   integer primary key,
  body text not null unique
);

-- A job as accepted. Inserted once; only operators change its lane and attempts.
create table trellis_job (
  seq            integer primary key,
  id             text not null unique,
  lane           integer not null,
  policy         integer not null,
  payload        text not null,
  created_at     integer not null,
  request_id     text,  -- null: its own id
  traceparent    text not null,
  tracestate     text,
  deadline_at    integer,
  key            text,
  key_hash       text,
  tags           text,
  config         text,
  expect         text,
  schema_version integer not null,
  clone_of       text,
  dedupe         text,
  dedupe_while   text,
  dedupe_until   integer,
  -- What the creator asked for instead of the type's policy.
  attempts       integer,
  timeout        integer,
  relations      text  -- what it belongs to, as a JSON object
);

create index trellis_job_parent on trellis_job (json_extract(relations, '$.parent'))
  where relations is not null;

-- Dedupe keys with a period: they hold until it has passed, whatever happens to the job.
create index trellis_job_dedupe on trellis_job (dedupe, dedupe_until) where dedupe_until is not null;

-- One narrow row while a job waits or runs; gone when it has ended. dedupe: the key that keeps out
-- other jobs, until the first claim, or as long as this row is there (dedupe_unfinished).
-- availability: ready (claimable), scheduled (before run_at), waiting_for_slot (of its key),
-- waiting_for_jobs (that must end before it), claimed (held by an attempt).
create table trellis_queue (
  job          integer primary key,
  lane         integer not null,
  availability text not null,
  state        text not null,
  version      integer not null,
  generation   integer not null,
  attempt      integer not null,
  claims       integer not null,
  crashes      integer not null,
  run_at       integer not null,
  session      integer,
  token        integer,
  claimed_at   integer,
  asked_at     integer,
  blocked      integer not null,
  suspect      integer not null,
  error        text,
  key_hash     text,
  dedupe       text,
  dedupe_unfinished integer,
  seen_at      integer,
  look_at      integer,
  policy       integer,  -- the one the last claim declared; null: never claimed
  -- Something follows its end (other jobs or a batch wait for it): only `followups` may end it.
  watched      integer not null default 0,
  -- The tenant whose share of the queue it uses, and its weight (null: 1). Its rank in the order of
  -- claims is given when it becomes due; without a tenant it has none, and its due time counts.
  tenant       text,
  weight       integer,
  rank         integer
);

create index trellis_queue_ready on trellis_queue (lane, coalesce(rank, run_at), job)
  where availability = 'ready';
create index trellis_queue_scheduled on trellis_queue (lane, run_at, job)
  where availability = 'scheduled';
-- What a session holds, by lane.
create index trellis_queue_session on trellis_queue (session, lane) where session is not null;
-- The order in which waiting jobs of a key get its slots, of each lane.
create index trellis_queue_key on trellis_queue (key_hash, lane, coalesce(rank, run_at), job)
  where key_hash is not null;
-- The waiting jobs of a tenant that have a rank.
create index trellis_queue_tenant on trellis_queue (lane, tenant, rank)
  where tenant is not null and availability in ('ready', 'waiting_for_slot');
create index trellis_queue_look on trellis_queue (look_at) where look_at is not null;
create unique index trellis_queue_dedupe on trellis_queue (dedupe) where dedupe is not null;

-- A job waits, or has waited, for another to succeed or just to end (follows_on). ended: how the other
-- one ended, in this generation of it; null: it has not.
create table trellis_dependency (
  job          integer not null,
  prerequisite integer not null,
  follows_on   text not null,
  ended        text,
  generation   integer not null,
  primary key (job, prerequisite)
) without rowid;

create index trellis_dependency_prerequisite on trellis_dependency (prerequisite, job);
create index trellis_dependency_open on trellis_dependency (job) where ended is null;

-- Jobs that ended and had more dependents than one transaction judges: the rest is left to promotion.
create table trellis_ended_prerequisite (
  job        integer primary key,
  state      text not null,
  generation integer not null
);

-- Where the share of a tenant ends in a line: one queue at one priority, named by its first lane.
create table trellis_share (
  line   integer not null,
  tenant text not null,
  end_at integer not null,
  primary key (line, tenant)
) without rowid;

-- How each generation of a job ended.
create table trellis_outcome (
  job         integer not null,
  generation  integer not null,
  state       text not null,
  version     integer not null,
  attempt     integer not null,
  claims      integer not null,
  crashes     integer not null,
  run_at      integer not null,
  started_at  integer,
  finished_at integer not null,
  error       text,
  result      text,
  keep_until  integer,
  policy      integer,  -- the one in force at the end; null: never claimed
  primary key (job, generation)
) without rowid;

create index trellis_outcome_keep on trellis_outcome (keep_until) where keep_until is not null;

-- The journal: append-only. Version 0 is a note that changed nothing. Job 0: the last event of removed
-- jobs, see statements/feed.sql.
create table trellis_event (
  seq     integer primary key,
  job     integer not null,
  version integer not null,
  kind    text not null,
  state   text not null,
  at      integer not null,
  attempt integer not null,
  session integer,
  token   integer,
  data    text
);

create index trellis_event_job on trellis_event (job);

-- One row per worker process; its lease is the lease of all its jobs. lease_until counts on the
-- clock that started with the boot named beside it.
create table trellis_session (
  number      integer primary key,
  id          integer not null unique,
  name        text not null,
  host        text not null,
  pid         integer not null,
  version     text not null,
  details     text not null,
  lease       integer not null,
  lease_until integer not null,
  boot_id     text not null,
  opened_at   integer not null,
  renewed_at  integer not null,
  ended_at    integer,
  report      text not null default '{}',
  draining    integer not null default 0
);

-- Ended sessions are removed after a while, the oldest first.
create index trellis_session_ended on trellis_session (ended_at) where ended_at is not null;

-- The worker processes of removed sessions, while there are jobs as old as they.
create table trellis_past_session (
  id       integer primary key,
  name     text not null,
  host     text not null,
  pid      integer not null,
  ended_at integer not null
);

-- A row per taken slot: owned by a job, and by its attempt once claimed.
create table trellis_key_slot (
  id           integer primary key,
  key_hash     text not null,
  job          integer not null,
  session      integer,
  token        integer,
  linger_until integer,  -- on the lease clock of the boot named beside it
  linger_boot  text
);

create index trellis_key_slot_key on trellis_key_slot (key_hash);
create index trellis_key_slot_job on trellis_key_slot (job);
create index trellis_key_slot_linger on trellis_key_slot (linger_until)
  where linger_until is not null;

-- The token buckets of keys with a rate, while they are not full. By the rate it was stored with: span is
-- how long an empty one takes to fill, burst how many tokens it holds.
create table trellis_key_bucket (
  key_hash text primary key,
  full_at  integer not null,
  span     integer not null,
  burst    integer not null
) without rowid;

create index trellis_key_bucket_full on trellis_key_bucket (full_at);

-- When slots of a key with a rate may be handed over: rows are only added and removed. since: when that
-- was planned; a moment that was planned in the future, because the clock was set back, has come.
create table trellis_key_wake (
  key_hash text not null,
  at       integer not null,
  since    integer not null
);

create index trellis_key_wake_key on trellis_key_wake (key_hash, at);
create index trellis_key_wake_at on trellis_key_wake (at);
create index trellis_key_wake_since on trellis_key_wake (since);

-- What the latest attempt reported.
create table trellis_note (
  job      integer primary key,
  claim    integer not null,
  began_at integer,
  seen_at  integer not null,
  progress text,
  phase    text
);

-- The items of every attempt: `claim` counts the attempts of a job.
create table trellis_item (
  job    integer not null,
  claim  integer not null,
  phase  text not null,
  name   text not null,
  status text not null,
  detail text,
  primary key (job, claim, phase, name)
) without rowid;

create table trellis_log (
  number  integer primary key,
  job     integer not null,
  at      integer not null,
  claim   integer not null,
  level   text not null,
  message text not null,
  fields  text
);

create index trellis_log_job on trellis_log (job, number);

create table trellis_idempotency (
  mark text primary key,
  job  integer not null
) without rowid;

create index trellis_idempotency_job on trellis_idempotency (job);

-- The row of service '*' and queue '*' stands for all queues: draining, it keeps every new job out; with
-- aging, a waiting job counts one priority higher for each such span since it was due.
create table trellis_queue_setting (
  service  text not null,
  queue    text not null,
  paused   integer not null,
  draining integer not null,
  aging    integer,
  primary key (service, queue)
) without rowid;

-- When, by whom and why new jobs were kept out of all queues, or accepted again.
create table trellis_drain_change (
  number integer primary key,
  at     integer not null,
  is_on  integer not null,
  actor  text not null,
  reason text not null
);

-- Limits of queues and types over the fleet: as declared in code, and what operators have set (JSON).
-- The version counts the changes of all limits.
create table trellis_job_limit (
  id       integer primary key,
  scope    text not null,  -- queue, type or key (each key of a type)
  service  text not null,
  name     text not null,
  declared text not null,
  override text not null,
  version  integer not null,
  unique (scope, service, name)
);

-- When the token bucket of a limit is full again.
create table trellis_limit_bucket (
  job_limit integer primary key,
  full_at   integer not null,
  span      integer not null,
  burst     integer not null
);

-- Attempts that were ended from outside and whose handlers may still run: limits count them.
create table trellis_lingering (
  job          integer not null,
  lane         integer not null,
  session      integer not null,
  token        integer not null,
  linger_until integer not null,  -- on the lease clock of the boot named beside it
  linger_boot  text not null,
  primary key (session, token)
) without rowid;

create index trellis_lingering_until on trellis_lingering (linger_until, linger_boot);
create index trellis_lingering_lane on trellis_lingering (lane, linger_until, linger_boot);

-- A lock belongs to a session (token 0) or to one attempt of it, and is held only while that is
-- current. A lock whose attempt was ended from outside stays held while its handler may still run:
-- until linger_until, on the lease clock of the boot named beside it, for that attempt's job.
create table trellis_lock (
  name         text primary key,
  session      integer not null,
  token        integer not null,
  taken_at     integer not null,
  linger_until integer,
  linger_boot  text,
  job          integer
) without rowid;

create index trellis_lock_session on trellis_lock (session);
create index trellis_lock_linger on trellis_lock (linger_until) where linger_until is not null;

-- What retention removed: id, last state, when.
create table trellis_removal (
  id         text primary key,
  state      text not null,
  removed_at integer not null
) without rowid;

create index trellis_removal_at on trellis_removal (removed_at);

-- Services whose expired jobs are archived before they are removed, and how their archiver does.
create table trellis_archive (
  service       text primary key,
  is_on         integer not null,
  since         integer not null,
  failing_since integer,
  failures      integer not null,
  error         text
) without rowid;

-- Expired jobs that wait for the archive of their service.
create table trellis_archive_queue (
  job       integer primary key,
  service   text not null,
  queued_at integer not null
);

create index trellis_archive_queue_service on trellis_archive_queue (service, job);

-- What operators changed: who, when, what, before, after, why. before and after are JSON.
create table trellis_audit (
  number integer primary key autoincrement,
  at     integer not null,
  actor  text not null,
  action text not null,
  target text not null,
  before text,
  after  text,
  reason text not null
);

create index trellis_audit_target on trellis_audit (target, number);
create index trellis_audit_at on trellis_audit (at);

-- The same as SQL users read it; the moment is in microseconds since 1970, as everywhere.
create view trellis_audit_log as
select number, at, actor, action, target, before, after, reason from trellis_audit;

-- What is due at certain times. body is JSON: what code declares, what operators changed, how jobs
-- of its type are created. next_slot is null for one that is never due again or is retired.
create table trellis_schedule (
  service    text not null,
  name       text not null,
  version    integer not null,
  next_slot  integer,
  retired_at integer,
  body       text not null,
  primary key (service, name)
) without rowid;

create index trellis_schedule_next on trellis_schedule (next_slot) where next_slot is not null;

-- What each slot of a schedule led to. An entry with through stands for all slots until then.
create table trellis_schedule_slot (
  service    text not null,
  name       text not null,
  slot       integer not null,
  outcome    text not null,
  late       integer not null,
  why        text,
  through    integer,
  job        text,
  decided_at integer not null,
  primary key (service, name, slot)
) without rowid;
-- Groups of jobs. A batch that is sealed finishes when all its members and all batches in it have.
create table trellis_batch (
  seq          integer primary key,
  id           text not null unique,
  service      text not null,
  name         text not null,
  fire_on      text not null,
  on_failure   text not null,
  parent       integer,
  then_job     text,  -- the fan-in job, as a JSON object
  created_at   integer not null,
  sealed_at    integer,
  cancelled_at integer,
  stopping_at  integer,
  finished_at  integer,
  succeeded    integer,
  fan_in       text
);

create index trellis_batch_unfinished on trellis_batch (seq) where finished_at is null;
create index trellis_batch_finished on trellis_batch (finished_at) where finished_at is not null;
create index trellis_batch_parent on trellis_batch (parent) where parent is not null;

-- One row per job of a batch: finished once, with the state it had then. linked: an existing job that
-- was found instead of creating one.
create table trellis_batch_member (
  batch       integer not null,
  job         integer not null,
  linked      integer not null,
  state       text,
  succeeded   integer,
  finished_at integer,
  primary key (batch, job)
);

create index trellis_batch_member_job on trellis_batch_member (job);
create index trellis_batch_member_unfinished on trellis_batch_member (batch, job) where finished_at is null;
create index trellis_batch_member_unsuccessful on trellis_batch_member (batch, job)
  where not succeeded;

-- Contracts of services: deployed by a worker at its start, or accepted by an operator.
create table trellis_contract (
  service     text not null,
  number      integer not null,
  body        text not null,
  fingerprint text not null,
  status      text not null check (status in ('deployed', 'accepted')),
  actor       text not null,
  reason      text not null,
  at          integer not null,
  primary key (service, number)
) without rowid;

-- Tokens of the HTTP API; of the secret only its SHA-256.
create table trellis_token (
  id         text primary key,
  hash       text not null,
  name       text not null,
  scopes     text not null,
  created_at integer not null,
  expires_at integer not null,
  revoked_at integer,
  actor      text not null,
  reason     text not null
) without rowid;

-- What workers last declared of each type: the hooks of jobs that no worker has claimed, and what to
-- create others with.
create table trellis_job_type (
  service        text not null,
  type           text not null,
  queue          text not null,
  policy         integer not null,
  schema_version integer not null,
  deadline       integer,
  primary key (service, type)
) without rowid;

-- Where a projection is in each stream from which its rows come; empty in a store of its own.
-- stream_id: of the stream, which is another one once it was made again; rebuilt_at: when its first
-- page was stored; newest_at: when the newest message was, by the clock of the server.
create table trellis_projection (
  stream     text primary key,
  last_seq   integer not null,
  stream_id  integer not null,
  schema     integer not null,
  rebuilt_at integer not null,
  newest_at  integer not null
) without rowid;

-- The worker processes that a projection has heard of.
create table trellis_presence (
  service     text not null,
  type        text not null,
  instance    text not null,
  at          integer not null,
  concurrency integer,
  version     text,
  primary key (service, type, instance)
) without rowid;

create index trellis_presence_at on trellis_presence (at);

-- A job with its head in one row, as programs read it. declared: the policy of the worker that claimed
-- it last; before the first claim, the one that workers declare for its type.
create view trellis_record as
select
  j.seq, j.id, l.service, l.type, l.queue, j.payload, p.body as policy,
  coalesce(j.request_id, j.id) as request_id, j.traceparent, j.tracestate, l.priority, j.created_at, j.deadline_at,
  j.key, j.key_hash, j.tags, j.config, j.expect, j.schema_version, j.clone_of,
  j.dedupe, j.dedupe_while, j.dedupe_until,
  d.body as declared, j.attempts as attempts_set, j.timeout as timeout_set,
  j.relations,
  coalesce(q.state, o.state) as state,
  coalesce(q.version, o.version) as version,
  coalesce(q.generation, o.generation) as generation,
  coalesce(q.attempt, o.attempt) as attempt,
  coalesce(q.claims, o.claims) as claims,
  coalesce(q.crashes, o.crashes) as crashes,
  coalesce(q.run_at, o.run_at) as run_at,
  q.session, q.token, q.claimed_at, q.asked_at,
  coalesce(q.blocked, 0) as blocked,
  coalesce(q.suspect, 0) as suspect,
  case when q.job is null then o.error else q.error end as error,
  o.finished_at,
  q.seen_at, q.availability
from trellis_job j
join trellis_lane l on l.id = j.lane
join trellis_policy p on p.id = j.policy
left join trellis_queue q on q.job = j.seq
left join trellis_outcome o
  on q.job is null and o.job = j.seq
 and o.generation = (select max(x.generation) from trellis_outcome x where x.job = j.seq)
left join trellis_job_type t
  on coalesce(q.claims, o.claims) = 0 and t.service = l.service and t.type = l.type
left join trellis_policy d on d.id = coalesce(q.policy, o.policy, t.policy);

-- The items of the latest attempt of each job.
create view trellis_job_items as
select j.id, i.phase, i.name as item, i.status, i.detail, i.claim
from trellis_item i join trellis_job j on j.seq = i.job
where i.claim = coalesce(
  (select q.claims from trellis_queue q where q.job = i.job),
  (select max(o.claims) from trellis_outcome o where o.job = i.job));

-- The same with what people want to know: the documented way to read jobs with SQL.
create view trellis_jobs as
select r.*,
  coalesce(o.started_at, n.began_at) as started_at,
  (select e.at from trellis_event e
   where e.job = r.seq and e.version > 0 order by e.seq desc limit 1) as updated_at,
  (select coalesce(s.name, p.name)
   from (select e.session from trellis_event e
         where e.job = r.seq and e.version > 0 and e.session is not null
         order by e.seq desc limit 1) a
   left join trellis_session s on s.id = a.session
   left join trellis_past_session p on p.id = a.session) as worker,
  o.result,
  json_extract(r.relations, '$.parent') as parent, json_extract(r.relations, '$.batch') as batch
from trellis_record r
left join trellis_outcome o
  on r.availability is null and o.job = r.seq and o.generation = r.generation
left join trellis_note n on n.job = r.seq and n.claim = r.claims;
