-- Give an ended job another end; only its last one can change.
update trellis.outcome o set state = $1::text::trellis.state, version = $2, finished_at = $3, keep_until = $4
where o.job = $5 and o.generation = $6 and o.version = $7
  and not exists (select 1 from trellis.queue q where q.job = o.job)
  and not exists (select 1 from trellis.outcome n where n.job = o.job and n.generation > o.generation)
returning 1
