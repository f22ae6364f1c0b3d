-- What attempts report about themselves.

-- name: note_fence
-- Those of these jobs that wait or run: the fence, whether the policy may watch for silence, and the
-- state. Their rows stay as they are until this transaction ends.
select q.job, q.session, q.token, p.silent_after is not null, q.attempt, q.state::text
from unnest($1::bigint[]) n(job)
cross join lateral (
  select x.job, x.policy, x.session, x.token, x.attempt, x.state from trellis.queue x
  where x.job = n.job for update) q
join trellis.job j on j.seq = q.job
join trellis.policy p on p.id = coalesce(q.policy, j.policy)

-- name: note_items
insert into trellis.item (job, claim, phase, name, status, detail)
select job, claim, phase, name, status, detail
from unnest($1::bigint[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[])
  n(job, claim, phase, name, status, detail)
on conflict (job, claim, phase, name) do update
set status = excluded.status, detail = excluded.detail

-- name: note_log
insert into trellis.log (job, at, claim, level, message, fields)
select job, at, claim, level, message, fields
from unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::text[], $6::text[])
  n(job, at, claim, level, message, fields)

-- name: note_phase
update trellis.note set phase = $1, progress = null where job = $2

-- name: note_progress
update trellis.note set progress = $1 where job = $2

-- name: note_seen
update trellis.queue set seen_at = $1, look_at = $2 where job = $3

-- name: note_touch
-- Keep the sign of life of attempts; what an earlier attempt reported is removed.
insert into trellis.note (job, claim, seen_at, began_at)
select job, claim, seen_at, began_at
from unnest($1::bigint[], $2::int[], $3::bigint[], $4::bigint[]) n(job, claim, seen_at, began_at)
on conflict (job) do update
set seen_at = excluded.seen_at, claim = excluded.claim,
    began_at = coalesce(
      excluded.began_at, case when trellis.note.claim = excluded.claim then trellis.note.began_at end),
    progress = case when trellis.note.claim = excluded.claim then trellis.note.progress end,
    phase = case when trellis.note.claim = excluded.claim then trellis.note.phase end

-- name: note_late
insert into trellis.event (job, at, session, token, attempt, state, kind, data, version, xid)
values (
  $1, $2, $3, $4, $5, $6::text::trellis.state, $7, $8, 0, pg_current_xact_id()::text::bigint)
