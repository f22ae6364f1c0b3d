update trellis_outcome set state = ?, version = ?, finished_at = ?, keep_until = ?
where job = ? and generation = ? and version = ?
  and not exists (select 1 from trellis_queue q where q.job = trellis_outcome.job)
  and not exists (
    select 1 from trellis_outcome n
    where n.job = trellis_outcome.job and n.generation > trellis_outcome.generation)
