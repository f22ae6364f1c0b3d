-- What a worker process last said of itself, and whether it was asked to go.
alter table trellis_session add column busy integer not null default 0;
alter table trellis_session add column draining integer not null default 0;

-- A lock belongs to a session (token 0) or to one attempt of it, and counts only while that does.
create table trellis_lock (
  name     text primary key,
  session  integer not null,
  token    integer not null,
  taken_at integer not null
) without rowid;

create index trellis_lock_session on trellis_lock (session);
