-- Batches: opening, joining, finishing, reading. Every statement that locks batches does so in the order
-- of their numbers.

-- fragment: batch_columns
select b.seq, b.id, b.service, b.name, b.fire_on, b.on_failure,
  (select p.id from trellis.batch p where p.seq = b.parent), b.then_job, b.created_at, b.sealed_at,
  b.cancelled_at, b.stopping_at, b.finished_at, b.succeeded, b.fan_in
from trellis.batch b

-- fragment: batch_keeps
-- Whether batch b keeps its members, as `keeps_members` says: it has not finished, or its fan-in job
-- waits, runs or has one of the states in `reading`.
b.finished_at is null or exists (
  select 1 from trellis.job j
  where j.id = b.fan_in
    and (exists (select 1 from trellis.queue w where w.job = j.seq)
      or (select x.state from trellis.outcome x where x.job = j.seq
          order by x.generation desc limit 1) in (select state from reading)))

-- name: batch_open
insert into trellis.batch (id, service, name, fire_on, on_failure, parent, then_job, created_at)
values ($1, $2, $3, $4, $5, (select p.seq from trellis.batch p where p.id = $6), $7, $8)
on conflict (id) do nothing

-- name: batch_join
-- Batches that get new members: they can be neither sealed nor cancelled until this transaction ends.
-- include: batch_columns
where b.id = any($1::text[]) order by b.seq for key share of b

-- name: batch_hold
-- The batches that wait for these jobs, and those around them: none of them finishes until this
-- transaction ends.
with recursive up(seq) as (
  select m.batch from unnest($1::bigint[]) n(job)
  join trellis.batch_member m on m.job = n.job and m.finished_at is null
  union
  select b.parent from up join trellis.batch b on b.seq = up.seq where b.parent is not null)
-- include: batch_columns
where b.seq in (select up.seq from up) order by b.seq for no key update of b

-- name: batch_take
-- A batch, those around it and those in it: nothing changes any of them until this transaction ends.
with recursive
up(seq) as (
  select b.seq from trellis.batch b where b.id = $1
  union
  select b.parent from up join trellis.batch b on b.seq = up.seq where b.parent is not null),
down(seq) as (
  select b.seq from trellis.batch b where b.id = $2
  union
  select b.seq from down join trellis.batch b on b.parent = down.seq)
-- include: batch_columns
where b.seq in (select up.seq from up union select down.seq from down) order by b.seq for update of b

-- name: batch_below
-- A batch and those in it.
with recursive down(seq) as (
  select b.seq from trellis.batch b where b.seq = $1
  union
  select b.seq from down join trellis.batch b on b.parent = down.seq)
select down.seq from down

-- fragment: batch_is_complete
-- Whether batch b is sealed, has not finished and waits for nothing more. The newest member is looked
-- at first: it is the one that most likely has not finished.
b.sealed_at is not null and b.finished_at is null
  and (select m.job from trellis.batch_member m
       where m.batch = b.seq and m.finished_at is null
         and not (m.linked and b.cancelled_at is not null)
       order by m.job desc limit 1) is null
  and not exists (select 1 from trellis.batch c where c.parent = b.seq and c.finished_at is null)

-- name: batch_complete
-- Which of these batches are complete.
-- include: batch_columns
where b.seq = any($1::bigint[]) and
-- include: batch_is_complete
order by b.seq

-- name: batch_left
-- Batches that are complete, of all.
select b.seq from trellis.batch b where
-- include: batch_is_complete
order by b.seq limit $1

-- name: batch_unsuccessful
-- Whether a member of a batch, or a batch in it, did not succeed.
select 1 from trellis.batch_member m
where m.batch = $1 and not m.succeeded
union all
select 1 from trellis.batch c where c.parent = $2 and not c.succeeded
limit 1

-- name: batch_finish
update trellis.batch set finished_at = $1, succeeded = $2, fan_in = $3 where seq = $4

-- name: batch_seal
update trellis.batch set sealed_at = coalesce(sealed_at, $1) where seq = any($2::bigint[])

-- name: batch_stop
update trellis.batch set stopping_at = coalesce(stopping_at, $1)
where seq = any($2::bigint[]) and finished_at is null

-- name: batch_cancel
update trellis.batch set cancelled_at = coalesce(cancelled_at, $1)
where seq = any($2::bigint[]) and finished_at is null

-- name: batch_lock
-- These batches and those around them: none of them finishes until this transaction ends.
with recursive up(seq) as (
  select n.seq from unnest($1::bigint[]) n(seq)
  union
  select b.parent from up join trellis.batch b on b.seq = up.seq where b.parent is not null)
select b.seq from trellis.batch b
where b.seq in (select up.seq from up) order by b.seq for no key update of b

-- name: batch_read
-- include: batch_columns
where b.id = any($1::text[])

-- name: batch_list
-- Batches before this number, opened before this moment, the newest first: all, or those that were or
-- were not cancelled ($3), finished ($4) and sealed ($5); null: either.
-- include: batch_columns
where b.seq < $1 and b.created_at < $2
  and (b.cancelled_at is not null) = coalesce($3, b.cancelled_at is not null)
  and (b.finished_at is not null) = coalesce($4, b.finished_at is not null)
  and (b.sealed_at is not null) = coalesce($5, b.sealed_at is not null)
order by b.seq desc limit $6

-- name: batch_in
-- include: batch_columns
where b.parent = any($1::bigint[]) order by b.seq

-- name: batch_counts
-- How many members of each of these batches are in each state now, and how many of them have finished.
select x.batch, x.state, count(*), count(x.finished_at) from (
  select m.batch, coalesce(
    (select q.state::text from trellis.queue q where q.job = m.job),
    (select o.state::text from trellis.outcome o where o.job = m.job
     order by o.generation desc limit 1), m.state) as state, m.finished_at
  from trellis.batch_member m where m.batch = any($1::bigint[])) x
group by x.batch, x.state

-- name: member_list
-- Members of a batch behind this number: the job, and its result.
select r.*, (select o.result from trellis.outcome o
             where o.job = r.seq and o.generation = r.generation and r.availability is null)
from (select m.job from trellis.batch_member m
      where m.batch = $1 and m.job > $2 order by m.job limit $3) d
cross join lateral (select * from trellis.record x where x.seq = d.job limit 1) r
order by d.job

-- name: member_add
insert into trellis.batch_member (batch, job, linked)
select b.seq, j.seq, false
from trellis.batch b cross join unnest($1::text[]) n(id) join trellis.job j on j.id = n.id
where b.id = $2
on conflict do nothing

-- name: member_watch
update trellis.queue q set watched = true
from unnest($1::text[]) n(id) join trellis.job j on j.id = n.id where q.job = j.seq

-- name: member_link
-- Existing jobs become members; one that has ended has finished. $3: the states of a success.
insert into trellis.batch_member (batch, job, linked, state, succeeded, finished_at)
select b.seq, j.seq, true, o.state::text, o.state::text = any($3::text[]), o.finished_at
from trellis.batch b cross join unnest($1::text[]) n(id) join trellis.job j on j.id = n.id
left join lateral (
  select x.state, x.finished_at from trellis.outcome x
  where x.job = j.seq and not exists (select 1 from trellis.queue q where q.job = j.seq)
  order by x.generation desc limit 1) o on true
where b.id = $2
on conflict do nothing

-- name: member_waiting
-- Which batches wait for these jobs.
select m.batch, m.job from unnest($1::bigint[]) n(job)
join trellis.batch_member m on m.job = n.job and m.finished_at is null

-- name: member_finish
-- These jobs have ended for the first time.
update trellis.batch_member set state = $1, succeeded = $2, finished_at = $3
where job = any($4::bigint[]) and finished_at is null

-- name: member_fence
-- Whether this attempt is the present one of the job; it stays so until this transaction ends.
select q.job from trellis.job j join trellis.queue q on q.job = j.seq
where j.id = $1 and q.session = $2 and q.token = $3 for update of q

-- name: due_batches
-- Members to be cancelled, because their batches stop.
select r.* from (
  select m.job from trellis.batch b
  join trellis.batch_member m on m.batch = b.seq and m.finished_at is null and not m.linked
  join trellis.queue q on q.job = m.job and q.asked_at is null
  where b.finished_at is null and b.stopping_at is not null
  order by m.job limit $1) d
cross join lateral (select * from trellis.record x where x.seq = d.job limit 1) r
order by d.job

-- name: keep_members
-- Of the jobs that retention looks at next, those that their batches keep are kept for longer.
with reading(state) as (select unnest($1::text[])::trellis.state)
update trellis.outcome o set keep_until = $2
from (select x.job, x.generation from trellis.outcome x
      where x.keep_until is not null and x.keep_until <= $3
      order by x.keep_until, x.job limit $4) d
where o.job = d.job and o.generation = d.generation and exists (
  select 1 from trellis.batch_member m join trellis.batch b on b.seq = m.batch
  where m.job = o.job and (
-- include: batch_keeps
  ))

-- name: prune_batch_member
delete from trellis.batch_member where job = any($1::bigint[])

-- name: prune_batches
-- Batches that finished long ago, and in which neither a member nor a batch is left.
with reading(state) as (select unnest($1::text[])::trellis.state)
delete from trellis.batch where seq in (
  select b.seq from trellis.batch b where b.finished_at is not null and b.finished_at <= $2
    and not exists (select 1 from trellis.batch_member m where m.batch = b.seq)
    and not exists (select 1 from trellis.batch c where c.parent = b.seq)
    and not (
-- include: batch_keeps
    )
  order by b.finished_at, b.seq limit $3)

-- name: batch_first
-- What the first member of a batch belongs to.
select j.relations from trellis.batch_member m join trellis.job j on j.seq = m.job
where m.batch = $1 order by m.job limit 1
