-- A lock whose attempt was ended from outside stays held while its handler may still run: until then,
-- on the lease clock of the boot named beside it, and in the name of that attempt's job.
alter table trellis_lock add column linger_until integer;
alter table trellis_lock add column linger_boot text;
alter table trellis_lock add column job integer;

create index trellis_lock_linger on trellis_lock (linger_until) where linger_until is not null;

-- Sessions that are over are removed after a while, the longest over first.
create index trellis_session_ended on trellis_session (ended_at) where ended_at is not null;
