select j.id from trellis_queue q join trellis_job j on j.seq = q.job
where q.key_hash = ? and q.park <> 'taken' and q.claims = 0
order by q.job limit 1
