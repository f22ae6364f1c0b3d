-- Limits over the fleet: settings, how far they are used, and ended attempts that may still run.

-- name: limit_settings
select id, scope, service, name, declared, override, version from trellis_job_limit
order by scope, service, name

-- name: limit_put
insert into trellis_job_limit (scope, service, name, declared, override, version)
values (?, ?, ?, ?, ?, (select coalesce(max(l.version), 0) + 1 from trellis_job_limit l))
on conflict (scope, service, name) do update
set declared = excluded.declared, override = excluded.override, version = excluded.version

-- name: limit_declare
insert into trellis_job_limit (scope, service, name, declared, override, version)
values (?, ?, ?, ?, ?, (select coalesce(max(l.version), 0) + 1 from trellis_job_limit l))
on conflict (scope, service, name) do nothing

-- name: limit_use
-- How far limits are used: when the bucket is full again, and how many run, for those in the second
-- list. Claimed jobs are counted by session and lane, ended attempts while their handlers may still
-- run: parameters 3 and 4 are the boot and the moment on its clock.
with recursive given(ids, counting, boot, moment) as (select ?, ?, ?, ?),
holder(session) as (
  select (select min(q.session) from trellis_queue q where q.session is not null)
  from given where json_array_length(given.counting) > 0
  union all
  select (select min(q.session) from trellis_queue q
          where q.session is not null and q.session > holder.session)
  from holder where holder.session is not null),
counted(id, lane) as materialized (
  select l.id, n.id from given
  cross join json_each(given.counting) b
  cross join trellis_job_limit l on l.id = b.value
  cross join trellis_lane n on n.service = l.service
    and case l.scope when 'queue' then n.queue else n.type end = l.name)
select l.id, coalesce(k.full_at, 0), coalesce(k.span, 0), coalesce(k.burst, 0),
  (select count(*) from counted cross join holder
   cross join trellis_queue q indexed by trellis_queue_session
     on q.session = holder.session and q.lane = counted.lane
   where counted.id = l.id and q.session is not null)
  + (select count(*) from counted
     cross join trellis_lingering g on g.lane = counted.lane
     where counted.id = l.id and g.linger_boot = given.boot and g.linger_until > given.moment),
  null
from given
cross join json_each(given.ids) b
cross join trellis_job_limit l on l.id = b.value
left join trellis_limit_bucket k on k.job_limit = l.id

-- name: limit_spend
insert into trellis_limit_bucket (job_limit, full_at, span, burst)
values (?, ?, ?, ?)
on conflict (job_limit) do update set full_at = excluded.full_at, span = excluded.span,
  burst = excluded.burst

-- name: lingering_add
insert into trellis_lingering (job, lane, session, token, linger_until, linger_boot)
select j.seq, j.lane, given.session, given.token, given.until, given.boot
from (select ? as job, ? as session, ? as token, ? as until, ? as boot) given
cross join trellis_job j on j.seq = given.job

-- name: lingering_stopped
delete from trellis_lingering where session = ? and token in (select value from json_each(?))

-- name: lingering_reaped
delete from trellis_lingering where session = ?

-- name: lingering_overdue
delete from trellis_lingering where (session, token) in (
  select g.session, g.token from trellis_lingering g indexed by trellis_lingering_until
  where g.linger_boot <> ? or g.linger_until <= ?)

-- name: lingering_is_overdue
select 1 where exists (
  select 1 from trellis_lingering g indexed by trellis_lingering_until
  where g.linger_boot <> ? or g.linger_until <= ?)
