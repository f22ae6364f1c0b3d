-- Delayed jobs of these lanes whose time has come, the earliest first.
select d.job, d.key_hash from unnest($1::int[]) l(lane) cross join lateral (
  select q.run_at, q.job, q.key_hash from trellis.queue q
  where q.lane = l.lane and q.park = 'later' and q.run_at <= trellis.clock()
  order by q.run_at, q.job limit $2) d
order by d.run_at, d.job limit $3
