-- Attempts of sessions that are over. The sessions that hold anything are found by stepping through
-- the index from one to the next: there are few, however many jobs wait.
with recursive holder(session) as (
  (select min(q.session) from trellis.queue q where q.session is not null)
  union all
  select (select min(q.session) from trellis.queue q
          where q.session is not null and q.session > h.session)
  from holder h where h.session is not null),
lost as materialized (
  select h.session from holder h
  where h.session is not null and not exists (
    select 1 from trellis.session s where s.id = h.session and s.ended_at is null)),
found as materialized (
  select q.job from lost l cross join lateral (
    select x.job from trellis.queue x
    where x.session is not null and x.session = l.session and not x.blocked) q
  order by q.job limit $1)
select r.* from found f
cross join lateral (select * from trellis.record x where x.seq = f.job limit 1) r
order by f.job
