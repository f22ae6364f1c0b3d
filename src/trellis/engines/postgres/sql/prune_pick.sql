select o.job, j.id, o.state::text from trellis.outcome o join trellis.job j on j.seq = o.job
where o.keep_until is not null and o.keep_until <= $1
  and not exists (select 1 from trellis.queue q where q.job = o.job)
order by o.keep_until limit $2 for update of o skip locked
