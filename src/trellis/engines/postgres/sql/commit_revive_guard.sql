-- Keep the outcome of a job that comes back; only its last one can.
update trellis.outcome o set keep_until = null
where o.job = $1 and o.generation = $2 and o.version = $3
  and not exists (select 1 from trellis.queue q where q.job = o.job)
  and not exists (select 1 from trellis.outcome n where n.job = o.job and n.generation > o.generation)
returning 1
