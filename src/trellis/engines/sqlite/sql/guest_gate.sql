-- Changes nothing, but takes the write lock before anything is read.
update trellis_meta set value = value where name = 'last_job'
