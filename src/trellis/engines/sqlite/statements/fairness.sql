-- The shares of tenants: who is next in a line, that is one queue at one priority.

-- name: fair_lines
-- The line of each lane, named by its first lane, and the rank of the line's first claimable job.
select l.id,
  (select min(s.id) from trellis_lane s
   where s.service = l.service and s.queue = l.queue and s.priority = l.priority),
  (select min((select coalesce(q.rank, q.run_at) from trellis_queue q
               where q.lane = s.id and q.availability = 'ready'
               order by coalesce(q.rank, q.run_at), q.job limit 1))
   from trellis_lane s
   where s.service = l.service and s.queue = l.queue and s.priority = l.priority)
from json_each(?) n cross join trellis_lane l on l.id = n.value

-- name: fair_shares
-- Where these shares (line and tenant as JSON) end, and the rank of each tenant's last waiting job
-- in the line.
select s.line, s.tenant, s.end_at,
  (select max((select q.rank from trellis_queue q
               where q.lane = l.id and q.tenant = s.tenant and q.tenant is not null
                 and q.availability in ('ready', 'waiting_for_slot')
               order by q.rank desc limit 1))
   from trellis_lane o cross join trellis_lane l
     on l.service = o.service and l.queue = o.queue and l.priority = o.priority
   where o.id = s.line)
from json_each(?) n
cross join trellis_share s
  on s.line = json_extract(n.value, '$[0]') and s.tenant = json_extract(n.value, '$[1]')

-- name: fair_keep
insert or replace into trellis_share (line, tenant, end_at) values (?, ?, ?)

-- name: fair_rank
-- Give delayed jobs whose time has come their ranks.
with given(job, rank) as (values (?, ?))
update trellis_queue set rank = (select g.rank from given g where g.job = trellis_queue.job)
where job in (select job from given) and availability = 'scheduled' and rank is null

-- fragment: fair_over
-- Shares that ended before the virtual time of their line: the tenant begins there anyway. Bound: now.
from (select ? as now) b cross join trellis_share s cross join trellis_lane o on o.id = s.line
where s.end_at <= coalesce((
  select min((select coalesce(q.rank, q.run_at) from trellis_queue q
              where q.lane = l.id and q.availability = 'ready'
              order by coalesce(q.rank, q.run_at), q.job limit 1))
  from trellis_lane l
  where l.service = o.service and l.queue = o.queue and l.priority = o.priority), b.now)

-- name: fair_prune
-- Those that ended first. Parameters: now, how many.
delete from trellis_share where (line, tenant) in (
select s.line, s.tenant
-- include: fair_over
order by s.end_at, s.tenant, o.service, o.queue, o.priority limit ?)

-- name: fair_prune_peek
select 1
-- include: fair_over
limit 1
