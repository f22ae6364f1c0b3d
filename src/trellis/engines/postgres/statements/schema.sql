-- The version of the tables, and migrations.

-- name: schema_table
select to_regclass($1::text) is not null

-- name: schema_others
-- How many tables a schema has.
select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1 and c.relkind = 'r'

-- name: schema_version
select value from trellis.meta where name = 'schema'

-- name: migrate_try
-- Take the lock of migrations, which ends with the transaction; false if another process has it.
select pg_try_advisory_xact_lock(hashtextextended('trellis/migrate/' || $1::text, 0))

-- fragment: migrate_lock
-- The same, waiting: for scripts that are printed.
select pg_advisory_xact_lock(hashtextextended('trellis/migrate/{schema}', 0));

-- fragment: migrate_limits
-- For the transaction: how long claims may wait behind a migration; its own work has no limit.
set local lock_timeout = '1s'; set local statement_timeout = 0;

-- fragment: migrate_schema
create schema if not exists {schema};

-- fragment: migrate_record
insert into trellis.meta (name, value) values ('schema', '{number}') on conflict (name) do update set value = excluded.value;

-- name: migrate_holders
-- The processes whose long transactions use the tables of a schema.
select string_agg(distinct format('pid %s (%s, %s for %s s)', a.pid,
  coalesce(nullif(a.application_name, ''), 'no application_name'), a.state,
  extract(epoch from clock_timestamp() - a.xact_start)::int), ', ')
from pg_locks l join pg_class c on c.oid = l.relation join pg_stat_activity a on a.pid = l.pid
where c.relnamespace = (select oid from pg_namespace where nspname = $1)
  and l.database = (select oid from pg_database where datname = current_database())
  and a.xact_start < clock_timestamp() - interval '1 second' and a.pid <> pg_backend_pid()
