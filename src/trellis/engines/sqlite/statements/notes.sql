-- What attempts report about themselves.

-- name: note_fence
-- Those of these jobs that wait or run: the fence, whether the policy watches for silence, the claim
-- whose notes are kept, and the state.
select q.job, q.session, q.token, json_extract(p.body, '$.activity_timeout') is not null, n.claim,
  q.attempt, q.state
from json_each(?) b
cross join trellis_queue q on q.job = b.value
cross join trellis_job j on j.seq = q.job
cross join trellis_policy p on p.id = j.policy
left join trellis_note n on n.job = q.job

-- name: note_item
insert or replace into trellis_item (job, name, status, detail) values (?, ?, ?, ?)

-- name: note_items_clear
delete from trellis_item where job = ?

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

-- name: note_forget
-- Remove the items of earlier attempts.
delete from trellis_item where job in (
  select n.job from (values (?, ?)) b join trellis_note n on n.job = b.column1 and n.claim <> b.column2)

-- name: note_late
insert into trellis_event (job, at, session, token, attempt, state, kind, data, version)
values (?, ?, ?, ?, ?, ?, ?, ?, 0)
