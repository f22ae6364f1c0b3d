-- What attempts report about themselves.

-- name: note_begun
update trellis_note set began_at = ? where job = ?

-- name: note_claim
select claim from trellis_note where job = ?

-- name: note_fence
select session, token from trellis_queue where job = ?

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

-- name: note_reset
insert or replace into trellis_note (job, claim, seen_at) values (?, ?, ?)

-- name: note_seen
update trellis_queue set seen_at = ?, look_at = ? where job = ?

-- name: note_touch
update trellis_note set seen_at = ? where job = ?
