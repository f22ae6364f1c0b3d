-- Jobs for which the clock has something to say: waiting ones by their own index, running ones of
-- each session that holds any (see due_lost).
with recursive holder(session) as (
  (select min(q.session) from trellis.queue q where q.session is not null)
  union all
  select (select min(q.session) from trellis.queue q
          where q.session is not null and q.session > h.session)
  from holder h where h.session is not null),
due as materialized (
  (select q.look_at, q.job from trellis.queue q
   where q.session is null and q.look_at is not null and q.look_at <= $1
   order by q.look_at, q.job limit $2)
  union all
  select x.look_at, x.job from holder h cross join lateral (
    select q.look_at, q.job from trellis.queue q
    where q.session is not null and q.session = h.session and q.look_at <= $1
    order by q.look_at, q.job limit $2) x)
select r.* from (select look_at, job from due order by look_at, job limit $2) d
cross join lateral (select * from trellis.record x where x.seq = d.job limit 1) r
order by d.look_at, d.job
