select run_at, job, key_hash from trellis_queue
where lane = ? and park = 'later' and run_at <= ? order by run_at, job limit ?
