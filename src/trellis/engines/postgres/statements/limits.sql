-- Limits over the fleet: settings, how far they are used, and ended attempts that may still run.

-- name: limit_settings
select id, scope, service, name, declared, override, version from trellis.job_limit
order by scope collate "C", service collate "C", name collate "C"

-- name: limit_gate
-- Only one transaction at a time changes limits, so that each change gets a higher version.
select pg_advisory_xact_lock(hashtextextended('trellis/limits', 0))

-- name: limit_put
insert into trellis.job_limit (scope, service, name, declared, override, version)
select $1, $2, $3, $4, $5, coalesce(max(l.version), 0) + 1 from trellis.job_limit l
on conflict (scope, service, name) do update
set declared = excluded.declared, override = excluded.override, version = excluded.version

-- name: limit_declare
insert into trellis.job_limit (scope, service, name, declared, override, version)
select $1, $2, $3, $4, $5, coalesce(max(l.version), 0) + 1 from trellis.job_limit l
on conflict (scope, service, name) do nothing

-- name: limit_lock
-- Keep other claims from using these limits until this transaction ends; in one order everywhere.
select id from trellis.job_limit where id = any($1::int[]) order by id for update

-- name: limit_use
-- How far limits are used: when the bucket is full again, and how many run, for those in $2.
-- Claimed jobs are counted by session and lane, ended attempts while their handlers may still run.
-- $3: when; null is now.
with recursive holder(session) as (
  (select min(q.session) from trellis.queue q
   where q.session is not null and cardinality($2::int[]) > 0)
  union all
  select (select min(q.session) from trellis.queue q
          where q.session is not null and q.session > h.session)
  from holder h where h.session is not null),
counted as materialized (
  select l.id, n.id as lane from trellis.job_limit l
  join trellis.lane n on n.service = l.service
    and case l.scope when 'queue' then n.queue else n.type end = l.name
  where l.id = any($2::int[]))
select l.id, coalesce(b.full_at, 0), coalesce(b.span, 0), coalesce(b.burst, 0),
  (select count(*) from holder h cross join counted c cross join lateral (
     select 1 from trellis.queue q
     where q.session is not null and q.session = h.session and q.lane = c.lane) x
   where c.id = l.id and h.session is not null)
  + (select count(*) from counted c join trellis.lingering g on g.lane = c.lane
     where c.id = l.id and g.linger_until > s.now),
  s.now
from (select coalesce($3::bigint, trellis.clock()) as now offset 0) s
cross join trellis.job_limit l left join trellis.limit_bucket b on b.job_limit = l.id
where l.id = any($1::int[])

-- name: limit_spend
insert into trellis.limit_bucket (job_limit, full_at, span, burst)
select * from unnest($1::int[], $2::bigint[], $3::bigint[], $4::int[])
on conflict (job_limit) do update set full_at = excluded.full_at, span = excluded.span,
  burst = excluded.burst

-- name: lingering_add
insert into trellis.lingering (job, lane, session, token, linger_until)
select $1, q.lane, $2, $3, $4 from trellis.job q where q.seq = $1

-- name: lingering_stopped
delete from trellis.lingering where session = $1 and token = any($2::bigint[]) returning 1

-- name: lingering_reaped
delete from trellis.lingering where session = $1 returning 1

-- name: lingering_overdue
delete from trellis.lingering where linger_until <= $1 returning 1
