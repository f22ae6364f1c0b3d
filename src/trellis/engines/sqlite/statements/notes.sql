-- What attempts report about themselves.

-- name: note_fence
-- Those of these jobs that wait or run: the fence, whether the policy watches for silence, and the state.
select q.job, q.session, q.token, json_extract(p.body, '$.activity_timeout') is not null, q.attempt,
  q.state
from json_each(?) b
cross join trellis_queue q on q.job = b.value
cross join trellis_job j on j.seq = q.job
cross join trellis_policy p on p.id = coalesce(q.policy, j.policy)

-- name: note_items
insert or replace into trellis_item (job, claim, phase, name, status, detail) values (?, ?, ?, ?, ?, ?)

-- name: note_log
insert into trellis_log (job, at, claim, level, message, fields) values (?, ?, ?, ?, ?, ?)

-- name: note_phase
update trellis_note set phase = ?, progress = null where job = ?

-- name: note_progress
update trellis_note set progress = ? where job = ?

-- name: note_seen
update trellis_queue set seen_at = ?, look_at = ? where job = ?

-- name: note_touch
-- Keep the sign of life of attempts; what an earlier attempt reported is removed.
insert into trellis_note (job, claim, seen_at, began_at) values (?, ?, ?, ?)
on conflict (job) do update
set seen_at = excluded.seen_at, claim = excluded.claim,
    began_at = coalesce(
      excluded.began_at, case when trellis_note.claim = excluded.claim then trellis_note.began_at end),
    progress = case when trellis_note.claim = excluded.claim then trellis_note.progress end,
    phase = case when trellis_note.claim = excluded.claim then trellis_note.phase end

-- name: note_late
insert into trellis_event (job, at, session, token, attempt, state, kind, data, version)
values (?, ?, ?, ?, ?, ?, ?, ?, 0)
