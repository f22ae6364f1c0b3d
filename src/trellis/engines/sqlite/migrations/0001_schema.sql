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

-- A job as accepted. Inserted once, never updated.
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
  clone_of       text
);

-- One narrow row while a job waits or runs; gone when it has ended.
-- availability: ready (claimable), scheduled (before run_at), waiting_for_slot (of its key), claimed
-- (held by an attempt).
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
  seen_at      integer,
  look_at      integer
);

create index trellis_queue_ready on trellis_queue (lane, job) where availability = 'ready';
create index trellis_queue_scheduled on trellis_queue (lane, run_at, job)
  where availability = 'scheduled';
create index trellis_queue_session on trellis_queue (session) where session is not null;
create index trellis_queue_key on trellis_queue (key_hash, job) where key_hash is not null;
create index trellis_queue_look on trellis_queue (look_at) where look_at is not null;
create unique index trellis_queue_dedupe on trellis_queue (dedupe) where dedupe is not null;

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
  primary key (job, generation)
) without rowid;

create index trellis_outcome_keep on trellis_outcome (keep_until) where keep_until is not null;

-- The journal: append-only. Version 0 is a note that changed nothing.
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
  busy        integer not null default 0,
  draining    integer not null default 0
);

-- Ended sessions are removed after a while, the oldest first.
create index trellis_session_ended on trellis_session (ended_at) where ended_at is not null;

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

-- What the latest attempt reported.
create table trellis_note (
  job      integer primary key,
  claim    integer not null,
  began_at integer,
  seen_at  integer not null,
  progress text,
  phase    text
);

create table trellis_item (
  job    integer not null,
  name   text not null,
  status text not null,
  detail text,
  primary key (job, name)
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

create table trellis_queue_setting (
  service  text not null,
  queue    text not null,
  paused   integer not null,
  draining integer not null,
  primary key (service, queue)
) without rowid;

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

-- A job with its head in one row: the documented way to read jobs with SQL.
create view trellis_record as
select
  j.seq, j.id, l.service, l.type, l.queue, j.payload, p.body as policy,
  coalesce(j.request_id, j.id) as request_id, j.traceparent, j.tracestate, l.priority, j.created_at, j.deadline_at,
  j.key, j.key_hash, j.tags, j.config, j.expect, j.schema_version, j.clone_of,
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
 and o.generation = (select max(x.generation) from trellis_outcome x where x.job = j.seq);
