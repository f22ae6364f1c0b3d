-- Archives: which services archive, and which expired jobs wait for it.

-- name: archive_is_on
select is_on from trellis_archive where service = ?

-- name: archive_on
select service from trellis_archive where is_on

-- name: archive_off
-- Archives that were switched off while jobs waited.
select a.service from trellis_archive a
where not a.is_on and exists (select 1 from trellis_archive_queue q where q.service = a.service)

-- name: archive_declare
insert into trellis_archive (service, is_on, since, failures) values (?, 1, ?, 0)
on conflict do nothing

-- name: archive_set
insert into trellis_archive (service, is_on, since, failures) values (?, ?, ?, 0)
on conflict (service) do update set
  is_on = excluded.is_on, since = excluded.since, failing_since = null, failures = 0, error = null

-- name: archive_works
update trellis_archive set failing_since = null, failures = 0, error = null
where service = ? and failures > 0

-- name: archive_fails
update trellis_archive set
  failing_since = coalesce(failing_since, ?), failures = failures + 1, error = ?
where service = ?

-- name: archive_list
select a.service, a.is_on, a.since, a.failing_since, a.failures, a.error,
  (select q.queued_at from trellis_archive_queue q
   where q.service = a.service order by q.job limit 1)
from trellis_archive a order by a.service

-- name: archive_add
insert or ignore into trellis_archive_queue (job, service, queued_at) values (?, ?, ?)

-- name: archive_unkeep
-- Retention has done its part; the job waits in the queue now.
update trellis_outcome set keep_until = null where job in (values (?))

-- name: archive_page
-- A job that has run again is stale: it is live, or kept for another time after its later end.
select q.job, j.id,
  (select o.state from trellis_outcome o where o.job = q.job order by o.generation desc limit 1),
  exists (select 1 from trellis_queue l where l.job = q.job) or exists (
    select 1 from trellis_outcome o where o.job = q.job and o.keep_until is not null)
from trellis_archive_queue q join trellis_job j on j.seq = q.job
where q.service = ? order by q.job limit ?

-- name: archive_look
select r.seq, r.id, r.state, r.version,
  r.availability is not null or exists (
    select 1 from trellis_outcome o where o.job = r.seq and o.keep_until is not null)
from trellis_record r join trellis_archive_queue q on q.job = r.seq
where r.id in (select value from json_each(?))
