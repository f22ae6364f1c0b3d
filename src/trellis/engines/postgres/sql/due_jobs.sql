select r.* from (
  select look_at, job from trellis.queue
  where look_at is not null and look_at <= $1 order by look_at, job limit $2) d
cross join lateral (select * from trellis.record x where x.seq = d.job limit 1) r
order by d.look_at, d.job
