select q.job, j.policy from trellis_queue q join trellis_job j on j.seq = q.job
where q.key_hash = ? and q.park = 'slot'
order by q.job limit 1
