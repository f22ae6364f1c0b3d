select value from trellis_meta where name = 'last_job'
