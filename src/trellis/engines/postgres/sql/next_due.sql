-- The first of each lane comes from the index; there are as many lanes as kinds of jobs.
select min(d.run_at) from trellis.lane l cross join lateral (
  select q.run_at from trellis.queue q
  where q.lane = l.id and q.park = 'later' order by q.run_at limit 1) d
