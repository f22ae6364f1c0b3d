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
-- park: ready (claimable), later (before run_at), slot (waits for its key), taken (leased).
create table trellis_queue (
  job        integer primary key,
  lane       integer not null,
  park       text not null,
  state      text not null,
  version    integer not null,
  generation integer not null,
  attempt    integer not null,
  claims     integer not null,
  crashes    integer not null,
  run_at     integer not null,
  session    integer,
  token      integer,
  claimed_at integer,
  asked_at   integer,
  blocked    integer not null,
  suspect    integer not null,
  error      text,
  key_hash   text,
  dedupe     text,
  seen_at    integer,
  look_at    integer
);

create index trellis_queue_ready on trellis_queue (lane, job) where park = 'ready';
create index trellis_queue_later on trellis_queue (lane, run_at, job) where park = 'later';
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
  ended_at    integer
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

-- What the latest attempt says about itself.
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

-- What retention removed: id, last state, when.
create table trellis_removal (
  id         text primary key,
  state      text not null,
  removed_at integer not null
) without rowid;
