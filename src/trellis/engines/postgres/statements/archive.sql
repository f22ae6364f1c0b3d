-- Archives: which services archive, and which expired jobs wait for it.

-- name: archive_is_on
select is_on from trellis.archive where service = $1

-- name: archive_on
select service from trellis.archive where is_on

-- name: archive_off
-- Archives that were switched off while jobs waited.
select a.service from trellis.archive a
where not a.is_on and exists (select 1 from trellis.archive_queue q where q.service = a.service)

-- name: archive_declare
insert into trellis.archive (service, is_on, since, failures) values ($1, true, $2, 0)
on conflict do nothing returning 1

-- name: archive_set
insert into trellis.archive (service, is_on, since, failures) values ($1, $2, $3, 0)
on conflict (service) do update set
  is_on = excluded.is_on, since = excluded.since, failing_since = null, failures = 0, error = null

-- name: archive_works
update trellis.archive set failing_since = null, failures = 0, error = null
where service = $1 and failures > 0

-- name: archive_fails
update trellis.archive set
  failing_since = coalesce(failing_since, $1), failures = failures + 1, error = $2
where service = $3

-- name: archive_list
select a.service, a.is_on, a.since, a.failing_since, a.failures, a.error,
  (select q.queued_at from trellis.archive_queue q
   where q.service = a.service order by q.job limit 1)
from trellis.archive a order by a.service

-- name: archive_add
insert into trellis.archive_queue (job, service, queued_at)
select job, service, queued_at
from unnest($1::bigint[], $2::text[], $3::bigint[]) n(job, service, queued_at)
on conflict do nothing

-- name: archive_unkeep
-- Retention has done its part; the job waits in the queue now.
update trellis.outcome set keep_until = null where job = any($1::bigint[])

-- name: archive_page
-- A job that has run again is stale: it is live, or kept for another time after its later end.
select q.job, j.id, o.state::text,
  o.keep_until is not null or exists (select 1 from trellis.queue l where l.job = q.job)
from (select x.job from trellis.archive_queue x where x.service = $1 order by x.job limit $2) q
cross join lateral (select y.id from trellis.job y where y.seq = q.job limit 1) j
cross join lateral (
  select z.state, z.keep_until from trellis.outcome z
  where z.job = q.job order by z.generation desc limit 1) o
order by q.job

-- name: archive_look
select j.seq, j.id, o.state::text, o.version,
  o.keep_until is not null or exists (select 1 from trellis.queue l where l.job = j.seq)
from unnest($1::text[]) n(id)
join trellis.job j on j.id = n.id
join trellis.archive_queue q on q.job = j.seq
cross join lateral (
  select z.state, z.version, z.keep_until from trellis.outcome z
  where z.job = j.seq order by z.generation desc limit 1) o
