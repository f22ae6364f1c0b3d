-- Statements about the connection itself: settings, transactions, checkpoints.

-- name: set_journal_mode
pragma journal_mode=wal

-- name: set_synchronous
pragma synchronous=full

-- name: set_wal_autocheckpoint
pragma wal_autocheckpoint=0

-- name: set_journal_size_limit
-- 64 MiB, as `LOG_LIMIT` in `connection.py`.
pragma journal_size_limit=67108864

-- name: set_busy_timeout
pragma busy_timeout=0

-- name: set_cache_size
pragma cache_size=-32000

-- name: set_temp_store
pragma temp_store=memory

-- fragment: setting
pragma {name}

-- name: begin
begin immediate

-- name: commit
commit

-- name: rollback
rollback

-- name: call_savepoint
savepoint call

-- name: call_release
release call

-- name: call_undo
rollback to call

-- name: part_savepoint
savepoint part

-- name: part_release
release part

-- name: part_undo
rollback to part

-- name: checkpoint
pragma wal_checkpoint(passive)

-- name: data_version
pragma data_version

-- name: database_list
pragma database_list
