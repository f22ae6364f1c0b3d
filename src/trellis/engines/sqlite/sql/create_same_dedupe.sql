select j.id from trellis_queue q join trellis_job j on j.seq = q.job where q.dedupe = ?
