-- Batches: opening, joining, finishing, reading. Every statement that locks batches does so in the order
-- of their numbers.

-- fragment: batch_columns
select b.seq, b.id, b.service, b.name, b.fire_on, b.on_failure,
  (select p.id from trellis_batch p where p.seq = b.parent), b.then_job, b.created_at, b.sealed_at,
  b.cancelled_at, b.stopping_at, b.finished_at, b.succeeded, b.fan_in
from trellis_batch b

-- fragment: batch_keeps
-- Whether batch b keeps its members, as `keeps_members` says: it has not finished, or its fan-in job
-- waits, runs or has one of the states in `reading`.
b.finished_at is null or exists (
  select 1 from trellis_job j
  where j.id = b.fan_in
    and (exists (select 1 from trellis_queue w where w.job = j.seq)
      or (select x.state from trellis_outcome x where x.job = j.seq
          order by x.generation desc limit 1) in (select state from reading)))

-- name: batch_open
insert into trellis_batch (id, service, name, fire_on, on_failure, parent, then_job, created_at)
values (?, ?, ?, ?, ?, (select p.seq from trellis_batch p where p.id = ?), ?, ?)
on conflict (id) do nothing

-- name: batch_join
-- Batches that get new members: they can be neither sealed nor cancelled until this transaction ends.
-- include: batch_columns
where b.id in (select value from json_each(?)) order by b.seq

-- name: batch_hold
-- The batches that wait for these jobs, and those around them: none of them finishes until this
-- transaction ends.
with recursive up(seq) as (
  select m.batch from json_each(?) n
  cross join trellis_batch_member m on m.job = n.value and m.finished_at is null
  union
  select b.parent from up join trellis_batch b on b.seq = up.seq where b.parent is not null)
-- include: batch_columns
where b.seq in (select up.seq from up) order by b.seq

-- name: batch_take
-- A batch, those around it and those in it: nothing changes any of them until this transaction ends.
with recursive
up(seq) as (
  select b.seq from trellis_batch b where b.id = ?
  union
  select b.parent from up join trellis_batch b on b.seq = up.seq where b.parent is not null),
down(seq) as (
  select b.seq from trellis_batch b where b.id = ?
  union
  select b.seq from down join trellis_batch b on b.parent = down.seq)
-- include: batch_columns
where b.seq in (select up.seq from up union select down.seq from down) order by b.seq

-- name: batch_below
-- A batch and those in it.
with recursive down(seq) as (
  select b.seq from trellis_batch b where b.seq = ?
  union
  select b.seq from down join trellis_batch b on b.parent = down.seq)
select down.seq from down

-- fragment: batch_is_complete
-- Whether batch b is sealed, has not finished and waits for nothing more. The newest member is looked
-- at first: it is the one that most likely has not finished.
b.sealed_at is not null and b.finished_at is null
  and (select m.job from trellis_batch_member m
       where m.batch = b.seq and m.finished_at is null
         and not (m.linked and b.cancelled_at is not null)
       order by m.job desc limit 1) is null
  and not exists (select 1 from trellis_batch c where c.parent = b.seq and c.finished_at is null)

-- name: batch_complete
-- Which of these batches are complete.
-- include: batch_columns
where b.seq in (select value from json_each(?)) and
-- include: batch_is_complete
order by b.seq

-- name: batch_left
-- Batches that are complete, of all.
select b.seq from trellis_batch b where
-- include: batch_is_complete
order by b.seq limit ?

-- name: batch_unsuccessful
-- Whether a member of a batch, or a batch in it, did not succeed.
select 1 from trellis_batch_member m
where m.batch = ? and not m.succeeded
union all
select 1 from trellis_batch c where c.parent = ? and not c.succeeded
limit 1

-- name: batch_finish
update trellis_batch set finished_at = ?, succeeded = ?, fan_in = ? where seq = ?

-- name: batch_seal
update trellis_batch set sealed_at = coalesce(sealed_at, ?) where seq in (select value from json_each(?))

-- name: batch_stop
update trellis_batch set stopping_at = coalesce(stopping_at, ?)
where seq in (select value from json_each(?)) and finished_at is null

-- name: batch_cancel
update trellis_batch set cancelled_at = coalesce(cancelled_at, ?)
where seq in (select value from json_each(?)) and finished_at is null

-- name: batch_read
-- include: batch_columns
where b.id in (select value from json_each(?))

-- name: batch_list
-- Batches before this number, opened before this moment, the newest first: all, or those that were or
-- were not cancelled, finished and sealed; null: either.
-- include: batch_columns
where b.seq < ? and b.created_at < ?
  and (b.cancelled_at is not null) = ifnull(?, b.cancelled_at is not null)
  and (b.finished_at is not null) = ifnull(?, b.finished_at is not null)
  and (b.sealed_at is not null) = ifnull(?, b.sealed_at is not null)
order by b.seq desc limit ?

-- name: batch_in
-- include: batch_columns
where b.parent in (select value from json_each(?)) order by b.seq

-- name: batch_counts
-- How many members of each of these batches are in each state now, and how many of them have finished.
select x.batch, x.state, count(*), count(x.finished_at) from (
  select m.batch, coalesce(
    (select q.state from trellis_queue q where q.job = m.job),
    (select o.state from trellis_outcome o where o.job = m.job
     order by o.generation desc limit 1), m.state) as state, m.finished_at
  from trellis_batch_member m where m.batch in (select value from json_each(?))) x
group by x.batch, x.state

-- name: member_list
-- Members of a batch behind this number: the job, and its result.
select r.*, (select o.result from trellis_outcome o
             where o.job = r.seq and o.generation = r.generation and r.availability is null)
from trellis_batch_member m join trellis_record r on r.seq = m.job
where m.batch = ? and m.job > ? order by m.job limit ?

-- name: member_add
insert into trellis_batch_member (batch, job, linked)
select b.seq, j.seq, false
from json_each(?) n cross join trellis_job j on j.id = n.value cross join trellis_batch b
where b.id = ?
on conflict do nothing

-- name: member_watch
update trellis_queue set watched = 1
where job in (select j.seq from json_each(?) n cross join trellis_job j on j.id = n.value)

-- name: member_link
-- Existing jobs become members; one that has ended has finished. The last value: the states of a
-- success.
insert into trellis_batch_member (batch, job, linked, state, succeeded, finished_at)
select b.seq, j.seq, true, o.state, o.state in (select value from json_each(k.successes)),
  o.finished_at
from (select ? as ids, ? as batch, ? as successes) k
cross join json_each(k.ids) n
cross join trellis_job j on j.id = n.value
cross join trellis_batch b on b.id = k.batch
left join trellis_outcome o on o.job = j.seq
  and not exists (select 1 from trellis_queue q where q.job = j.seq)
  and o.generation = (select max(x.generation) from trellis_outcome x where x.job = j.seq)
where true
on conflict do nothing

-- name: member_waiting
-- Which batches wait for these jobs.
select m.batch, m.job from json_each(?) n
cross join trellis_batch_member m on m.job = n.value and m.finished_at is null

-- name: member_finish
-- These jobs have ended for the first time.
update trellis_batch_member set state = ?, succeeded = ?, finished_at = ?
where job in (select value from json_each(?)) and finished_at is null

-- name: member_fence
-- Whether this attempt is the present one of the job; it stays so until this transaction ends.
select q.job from trellis_job j join trellis_queue q on q.job = j.seq
where j.id = ? and q.session = ? and q.token = ?

-- name: due_batches
-- Members to be cancelled, because their batches stop.
select r.* from trellis_batch b
cross join trellis_batch_member m on m.batch = b.seq and m.finished_at is null and not m.linked
cross join trellis_queue q on q.job = m.job and q.asked_at is null
join trellis_record r on r.seq = m.job
where b.finished_at is null and b.stopping_at is not null
order by m.job limit ?

-- name: keep_members
-- Of the jobs that retention looks at next, those that their batches keep are kept for longer.
with reading(state) as (select value from json_each(?))
update trellis_outcome set keep_until = ?
where (job, generation) in (
  select k.job, k.generation
  from (select y.job, y.generation from trellis_outcome y
        where y.keep_until is not null and y.keep_until <= ?
        order by y.keep_until, y.job limit ?) k
  cross join trellis_batch_member m on m.job = k.job
  cross join trellis_batch b on b.seq = m.batch
  where (
-- include: batch_keeps
  ))

-- name: prune_batch_member
delete from trellis_batch_member where job in (values (?))

-- name: prune_batches
-- Batches that finished long ago, and in which neither a member nor a batch is left.
with reading(state) as (select value from json_each(?))
delete from trellis_batch where seq in (
  select b.seq from trellis_batch b where b.finished_at is not null and b.finished_at <= ?
    and not exists (select 1 from trellis_batch_member m where m.batch = b.seq)
    and not exists (select 1 from trellis_batch c where c.parent = b.seq)
    and not (
-- include: batch_keeps
    )
  order by b.finished_at, b.seq limit ?)

-- name: prune_batches_peek
select 1 from trellis_batch where finished_at is not null and finished_at <= ? limit 1

-- name: batch_first
-- What the first member of a batch belongs to.
select j.relations from trellis_batch_member m join trellis_job j on j.seq = m.job
where m.batch = ? order by m.job limit 1
