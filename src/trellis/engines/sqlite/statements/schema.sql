-- The version of the tables, and migrations.

-- name: schema_tables
select name from sqlite_master where type = 'table' and name like 'trellis\_%' escape '\'

-- name: schema_version
select value from trellis_meta where name = 'schema'

-- name: schema_record
insert or replace into trellis_meta (name, value) values ('schema', ?)
