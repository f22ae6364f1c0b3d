-- Creating jobs in a transaction of the caller.

-- name: instance
-- The identity of this database: a copy of it has another oid.
select m.value || '/' || d.oid from trellis.meta m, pg_database d
where m.name = 'instance' and d.datname = current_database()

-- name: caller_savepoint
savepoint trellis_caller

-- name: caller_release
release savepoint trellis_caller

-- name: caller_undo
rollback to savepoint trellis_caller

-- name: caller_isolation
select current_setting('transaction_isolation')
