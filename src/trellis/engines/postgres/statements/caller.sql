-- Creating jobs in a transaction of the caller.

-- name: instance
-- What names this database among all: a copy of it has another oid.
select m.value || '/' || d.oid from trellis.meta m, pg_database d
where m.name = 'instance' and d.datname = current_database()
