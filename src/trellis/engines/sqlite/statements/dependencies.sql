-- Jobs that wait for others.

-- name: dependency_find
-- These jobs: number, id, state, generation, and whether something follows the end of a live one.
select r.seq, r.id, r.state, r.generation, r.availability is not null,
  coalesce((select q.watched from trellis_queue q where q.job = r.seq), 0)
from trellis_record r where r.id in (select value from json_each(?))

-- name: dependency_watch
-- Mark the live ones of these jobs: something follows their end.
update trellis_queue set watched = 1
where job in (select j.seq from json_each(?) n cross join trellis_job j on j.id = n.value)

-- name: dependency_park
-- Let new jobs wait for others.
update trellis_queue set availability = 'waiting_for_jobs'
where job in (select j.seq from json_each(?) n cross join trellis_job j on j.id = n.value)

-- name: dependency_put
insert or replace into trellis_dependency (job, prerequisite, follows_on, ended, generation)
values (?, ?, ?, ?, ?)

-- name: dependency_open
-- The links to these jobs that are not decided yet: the waiting job, the other, and on what.
select d.job, d.prerequisite, d.follows_on
from json_each(?) n
cross join trellis_dependency d on d.prerequisite = n.value and d.ended is null
order by d.job, d.prerequisite limit ?

-- name: dependency_waits
-- Which of these jobs still have a link that is not decided.
select n.value from json_each(?) n
where exists (select 1 from trellis_dependency d where d.job = n.value and d.ended is null)

-- name: dependency_result
-- The result that a job takes as payload. Bound: the job, and the id of the other.
select o.result from trellis_job p
join trellis_dependency d on d.prerequisite = p.seq
join trellis_outcome o on o.job = d.prerequisite and o.generation = d.generation
where d.job = ? and p.id = ?

-- name: dependency_payload
update trellis_job set payload = ?, relations = ? where seq = ?

-- name: dependency_tenant
-- The tenant of a job, which may be known only with its payload: its promotion gives it a rank.
update trellis_queue
set tenant = ?, weight = ?,
    availability = case when availability = 'ready' and rank is null
      then 'scheduled' else availability end
where job = ?

-- name: dependency_links
-- Links of these jobs in both directions. Bound: ids, ids, limit.
select w.id, p.id, g.follows_on, g.ended
from (
  select x.job, x.prerequisite, x.follows_on, x.ended
  from json_each(?) n cross join trellis_job j on j.id = n.value
  join trellis_dependency x on x.job = j.seq
  union
  select x.job, x.prerequisite, x.follows_on, x.ended
  from json_each(?) n cross join trellis_job j on j.id = n.value
  join trellis_dependency x on x.prerequisite = j.seq) g
join trellis_job w on w.seq = g.job join trellis_job p on p.seq = g.prerequisite
order by g.job, g.prerequisite limit ?

-- name: backlog_add
insert or ignore into trellis_ended_prerequisite (job, state, generation) values (?, ?, ?)

-- name: backlog_pick
select job, state, generation from trellis_ended_prerequisite order by job limit ?

-- name: backlog_remove
delete from trellis_ended_prerequisite where job in (values (?))

-- name: key_try_lock
-- Nothing to lock: the transaction has the file for itself.
select ? is not null
