-- The first of each lane comes from the index; there are as many lanes as kinds of jobs.
select min((
  select min(q.run_at) from trellis_queue q where q.lane = l.id and q.park = 'later'))
from trellis_lane l
