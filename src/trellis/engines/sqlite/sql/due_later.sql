select job, key_hash from trellis_queue
where park = 'later' and run_at <= ? order by run_at, job limit ?
