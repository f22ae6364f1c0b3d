-- Jobs that wait for others.

-- name: dependency_lock
-- None of these live jobs is claimed or ends until this transaction ends.
select q.job
from (select j.seq from unnest($1::text[]) n(id) join trellis.job j on j.id = n.id
      order by j.seq offset 0) p
cross join lateral (select x.job from trellis.queue x where x.job = p.seq for update) q

-- name: dependency_find
-- These jobs: number, id, state, generation, and whether something follows the end of a live one.
select j.seq, j.id, coalesce(q.state, o.state)::text, coalesce(q.generation, o.generation),
  q.job is not null, coalesce(q.watched, false)
from unnest($1::text[]) n(id)
join trellis.job j on j.id = n.id
left join trellis.queue q on q.job = j.seq
left join lateral (
  select x.state, x.generation from trellis.outcome x
  where x.job = j.seq order by x.generation desc limit 1) o on true

-- name: dependency_foreign
-- The live jobs among these that another transaction has created.
select j.id
from unnest($1::text[]) n(id)
join trellis.job j on j.id = n.id
join trellis.queue q on q.job = j.seq
where not exists (
  select 1 from trellis.event e
  where e.job = j.seq and e.version = 1 and e.xid = pg_current_xact_id()::text::bigint)

-- name: dependency_watch
-- Mark the live ones of these jobs, which are locked: something follows their end.
update trellis.queue q set watched = true
from (select j.seq from unnest($1::text[]) n(id) join trellis.job j on j.id = n.id) p
where q.job = p.seq

-- name: dependency_park
-- Let new jobs wait for others.
update trellis.queue q set availability = 'waiting_for_jobs'
from (select j.seq from unnest($1::text[]) n(id) join trellis.job j on j.id = n.id) p
where q.job = p.seq

-- name: dependency_put
insert into trellis.dependency (job, prerequisite, follows_on, ended, generation)
select d.job, d.prerequisite, d.follows_on, d.ended, d.generation
from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::int[])
  d(job, prerequisite, follows_on, ended, generation)
on conflict (job, prerequisite) do update
set ended = excluded.ended, generation = excluded.generation

-- name: dependency_open
-- The links to these jobs that are not decided yet: the waiting job, the other, and on what.
select d.job, d.prerequisite, d.follows_on
from unnest($1::bigint[]) n(job)
join trellis.dependency d on d.prerequisite = n.job and d.ended is null
order by d.job, d.prerequisite limit $2

-- name: dependent_lock
-- Jobs that wait for others, in the order of all transactions: one that two prerequisites free at
-- once is judged by one transaction after the other.
select q.job
from (select n.job from unnest($1::bigint[]) n(job) order by n.job offset 0) p
cross join lateral (select x.job from trellis.queue x where x.job = p.job for update) q

-- name: dependency_waits
-- Which of these jobs still have a link that is not decided.
select n.job from unnest($1::bigint[]) n(job)
where exists (select 1 from trellis.dependency d where d.job = n.job and d.ended is null)

-- name: dependency_result
-- The result that a job takes as payload: $1 the job, $2 the id of the other.
select o.result from trellis.job p
join trellis.dependency d on d.job = $1 and d.prerequisite = p.seq
join trellis.outcome o on o.job = d.prerequisite and o.generation = d.generation
where p.id = $2

-- name: dependency_payload
update trellis.job set payload = $1, relations = $2 where seq = $3

-- name: dependency_tenant
-- The tenant of a job, which may be known only with its payload: its promotion gives it a rank.
update trellis.queue
set tenant = $1, weight = $2,
    availability = case when availability = 'ready' and rank is null
      then 'scheduled' else availability end
where job = $3

-- name: dependency_unadmitted
-- Let jobs of keys whose locks other transactions hold be admitted after this transaction.
update trellis.queue set availability = 'unadmitted'
where job = any($1::bigint[]) and availability = 'waiting_for_slot'

-- name: dependency_links
-- Links of these jobs in both directions: $1 and $2 the ids, $3 the limit.
select w.id, p.id, d.follows_on, d.ended
from (
  select x.job, x.prerequisite, x.follows_on, x.ended
  from unnest($1::text[]) n(id) join trellis.job j on j.id = n.id
  join trellis.dependency x on x.job = j.seq
  union
  select x.job, x.prerequisite, x.follows_on, x.ended
  from unnest($2::text[]) n(id) join trellis.job j on j.id = n.id
  join trellis.dependency x on x.prerequisite = j.seq) d
join trellis.job w on w.seq = d.job join trellis.job p on p.seq = d.prerequisite
order by d.job, d.prerequisite limit $3

-- name: backlog_add
insert into trellis.ended_prerequisite (job, state, generation)
select d.job, d.state, d.generation
from unnest($1::bigint[], $2::text[], $3::int[]) d(job, state, generation)
on conflict do nothing

-- name: backlog_pick
select job, state, generation from trellis.ended_prerequisite
order by job limit $1 for update skip locked

-- name: backlog_remove
delete from trellis.ended_prerequisite where job = any($1::bigint[])

-- name: key_try_lock
-- `key_lock` without waiting: false if another transaction holds it.
select pg_try_advisory_xact_lock(hashtextextended('trellis/key/' || $1::text, 0))
