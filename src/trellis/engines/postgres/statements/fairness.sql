-- The shares of tenants: who is next in a line, that is one queue at one priority.

-- name: fair_lines
-- The line of each lane, named by its first lane, and the rank of the line's first claimable job.
-- $1 lanes.
select l.id, f.line, f.head
from unnest($1::int[]) n(lane) join trellis.lane l on l.id = n.lane
cross join lateral (
  select min(s.id) as line, min(h.rank) as head
  from trellis.lane s
  left join lateral (
    select coalesce(q.rank, q.run_at) as rank from trellis.queue q
    where q.lane = s.id and q.availability = 'ready'
    order by coalesce(q.rank, q.run_at), q.job limit 1) h on true
  where s.service = l.service and s.queue = l.queue and s.priority = l.priority) f

-- name: fair_lock
-- Keep other transactions from giving ranks to jobs of these tenants until this one ends: rows that
-- are there are locked, not changed. In the same order everywhere. $1 shares: line and tenant as JSON.
insert into trellis.share (line, tenant, end_at)
select (n.share::json ->> 0)::int, n.share::json ->> 1, 0 from unnest($1::text[]) n(share)
order by 1, 2
on conflict (line, tenant) do update set end_at = excluded.end_at where false

-- name: fair_shares
-- Where these shares end, and the rank of each tenant's last waiting job in the line.
select d.line, d.tenant, s.end_at, w.last
from (select (n.share::json ->> 0)::int as line, n.share::json ->> 1 as tenant
      from unnest($1::text[]) n(share)) d
join trellis.share s on s.line = d.line and s.tenant = d.tenant
cross join lateral (
  select max(x.rank) as last
  from trellis.lane o
  join trellis.lane l on l.service = o.service and l.queue = o.queue and l.priority = o.priority
  cross join lateral (
    select q.rank from trellis.queue q
    where q.lane = l.id and q.tenant = d.tenant and q.tenant is not null
      and q.availability in ('ready', 'waiting_for_slot')
    order by q.rank desc limit 1) x
  where o.id = d.line) w

-- name: fair_keep
update trellis.share s set end_at = d.end_at
from unnest($1::int[], $2::text[], $3::bigint[]) d(line, tenant, end_at)
where s.line = d.line and s.tenant = d.tenant

-- name: fair_rank
-- Give delayed jobs whose time has come their ranks; one that another transaction changes now gets
-- none, and is promoted the next time.
with due as materialized (
  select q.tid, n.rank from unnest($1::bigint[], $2::bigint[]) n(job, rank) cross join lateral (
    select x.ctid as tid from trellis.queue x
    where x.job = n.job and x.availability = 'scheduled' and x.rank is null
    for update skip locked) q)
update trellis.queue q set rank = due.rank from due where q.ctid = due.tid

-- name: fair_prune
-- Remove shares that ended before the virtual time of their line, those that ended first: the tenant
-- begins there anyway. $1 now, $2 how many.
with line as materialized (
  select o.id, o.service, o.queue, o.priority, coalesce((
    select min(h.rank) from trellis.lane s cross join lateral (
      select coalesce(q.rank, q.run_at) as rank from trellis.queue q
      where q.lane = s.id and q.availability = 'ready'
      order by coalesce(q.rank, q.run_at), q.job limit 1) h
    where s.service = o.service and s.queue = o.queue and s.priority = o.priority), $1) as virtual
  from trellis.lane o where exists (select 1 from trellis.share s where s.line = o.id))
delete from trellis.share s using (
  select x.ctid as tid from trellis.share x join line on line.id = x.line
  where x.end_at <= line.virtual
  order by x.end_at, x.tenant collate "C", line.service collate "C", line.queue collate "C",
    line.priority
  limit $2 for update of x skip locked) g
where s.ctid = g.tid
