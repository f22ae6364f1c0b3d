delete from trellis_job where seq > ?
