-- A temporary table of the same name would be written instead of ours, and vanish.
select name from sqlite_temp_master
where type in ('table', 'view') and name like 'trellis\_%' escape '\' limit 1
