select q.job, q.token, q.asked_at is not null from trellis.queue q where q.session = $1 order by q.job
