update trellis_meta set value = ? where name = 'last_job'
