-- Replication slots that nobody uses: the server keeps its log for them.
select slot_name::text,
  pg_wal_lsn_diff(
    case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end,
    restart_lsn)::bigint
from pg_replication_slots where not active and restart_lsn is not null order by slot_name
