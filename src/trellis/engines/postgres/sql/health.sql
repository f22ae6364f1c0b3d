select
  current_setting('server_version') as version,
  current_database() as database,
  (select value from trellis.meta where name = 'schema') as schema_version,
  current_setting('synchronous_commit') as synchronous_commit,
  current_setting('fsync') as fsync,
  current_setting('full_page_writes') as full_page_writes,
  (select sum(pg_total_relation_size(c.oid))::bigint
   from pg_class c
   where c.relnamespace =
     (select relnamespace from pg_class where oid = 'trellis.meta'::regclass)
     and c.relkind = 'r') as size_bytes,
  (select extract(epoch from max(clock_timestamp() - xact_start))::float
   from pg_stat_activity where backend_xmin is not null and pid <> pg_backend_pid()) as oldest_snapshot_seconds,
  (select extract(epoch from clock_timestamp() - min(xact_start))::float
   from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid()) as feed_lag_seconds,
  (select n_dead_tup from pg_stat_all_tables where relid = 'trellis.queue'::regclass) as dead_queue_rows
