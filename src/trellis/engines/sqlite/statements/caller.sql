-- Creating jobs in a transaction of the caller.

-- name: caller_gate
-- Changes nothing, but takes the write lock before anything is read.
update trellis_meta set value = value where name = 'last_job'

-- name: caller_shadows
-- A temporary table of the same name would be written instead, and vanish.
select name from sqlite_temp_master
where type in ('table', 'view') and name like 'trellis\_%' escape '\' limit 1

-- name: caller_version
select name, value from trellis_meta where name = 'schema'

-- name: caller_savepoint
savepoint trellis_caller

-- name: caller_release
release trellis_caller

-- name: caller_undo
rollback to trellis_caller
