update trellis.outcome o set keep_until = null
where o.job = $1 and o.generation = $2 and o.version = $3
  and not exists (select 1 from trellis.queue q where q.job = o.job)
returning 1
