-- What the server reports about itself.

-- name: health
select
  current_setting('server_version') as version,
  current_setting('server_version_num')::int as version_number,
  pg_is_in_recovery() as is_standby,
  current_database() as database,
  (select value from trellis.meta where name = 'schema') as schema_version,
  current_setting('synchronous_commit') as synchronous_commit,
  current_setting('fsync') as fsync,
  current_setting('full_page_writes') as full_page_writes,
  current_setting('autovacuum') as autovacuum,
  current_setting('track_counts') as track_counts,
  (select count(*) from pg_stat_activity where backend_type = 'client backend')::int as connections,
  current_setting('max_connections')::int
    - current_setting('superuser_reserved_connections')::int as max_connections,
  (select rolsuper from pg_roles where rolname = current_user)
    or pg_has_role('pg_read_all_stats', 'usage') as sees_others,
  (select sum(pg_total_relation_size(c.oid))::bigint
   from pg_class c
   where c.relnamespace =
     (select relnamespace from pg_class where oid = 'trellis.meta'::regclass)
     and c.relkind = 'r') as size_bytes,
  (select extract(epoch from max(clock_timestamp() - xact_start))::float
   from pg_stat_activity where backend_xmin is not null and pid <> pg_backend_pid()) as oldest_snapshot_seconds,
  (select extract(epoch from clock_timestamp() - min(xact_start))::float
   from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid()) as feed_lag_seconds,
  q.n_live_tup as live_queue_rows,
  q.n_dead_tup as dead_queue_rows,
  to_char(q.last_autovacuum at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') as last_autovacuum
from (select 1) one
left join pg_stat_all_tables q on q.relid = 'trellis.queue'::regclass

-- name: health_horizon
-- What prevents dead rows from being removed, for more than $1 seconds or $2 transactions.
select kind, name, who, seconds, transactions from (
  select 'session' as kind, a.pid::text as name,
    format('%s, %s, user %s', coalesce(nullif(a.application_name, ''), 'no application_name'),
      coalesce(a.state, a.backend_type), coalesce(a.usename, '-')) as who,
    extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds,
    greatest(age(a.backend_xmin), age(a.backend_xid)) as transactions
  from pg_stat_activity a
  where a.pid <> pg_backend_pid() and a.backend_type <> 'autovacuum worker'
    and (a.datname = current_database() or a.datname is null)
    and (a.backend_xmin is not null or a.backend_xid is not null)
  union all
  select 'prepared', p.gid, 'user ' || p.owner,
    extract(epoch from clock_timestamp() - p.prepared)::float8, age(p.transaction)
  from pg_prepared_xacts p where p.database = current_database()
  union all
  select 'slot', s.slot_name::text, case when s.active then 'in use' else 'not in use' end, null,
    age(s.xmin)
  from pg_replication_slots s where s.xmin is not null) h
where seconds > $1::float8 or transactions > $2::int
order by transactions desc nulls last limit 5

-- name: health_slots
-- Unused replication slots: the server keeps its log for them.
select slot_name::text,
  pg_wal_lsn_diff(
    case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end,
    restart_lsn)::bigint
from pg_replication_slots where not active and restart_lsn is not null order by slot_name

-- name: health_settings
select name, setting from pg_settings where name = any($1::text[])

-- name: blockers
-- Sessions that block process $1, or any statement that names tables of schema $2 if it is null, and
-- sessions that block those; first those that wait for none.
with recursive blocker(pid) as (
  select b.pid
  from pg_stat_activity a cross join lateral unnest(pg_blocking_pids(a.pid)) b(pid)
  where a.datname = current_database() and a.wait_event_type = 'Lock'
    and case when $1::int is null then position($2::text in a.query) > 0 else a.pid = $1::int end
  union
  select b.pid
  from blocker k cross join lateral unnest(pg_blocking_pids(k.pid)) b(pid)
  where k.pid <> 0)
select k.pid, coalesce(a.application_name, ''), coalesce(a.usename, ''), a.state,
  extract(epoch from clock_timestamp() - a.xact_start)::float8, left(coalesce(a.query, ''), 1000),
  w.waits
from blocker k
left join pg_stat_activity a on a.pid = k.pid
cross join lateral (select k.pid <> 0 and cardinality(pg_blocking_pids(k.pid)) > 0) w(waits)
order by w.waits, a.xact_start nulls last, k.pid
limit 3
