-- Schedules and the ledger of their slots.

-- name: schedule_list
-- Bound: services, whether all are wanted.
select service, name, version, next_slot, retired_at, body from trellis_schedule
where service in (select value from json_each(?)) or ?
order by service, name

-- name: schedule_due
select service, name, version, next_slot, retired_at, body from trellis_schedule
where next_slot <= ? order by next_slot, service, name limit ?

-- name: schedule_next
select min(next_slot) from trellis_schedule where next_slot > ?

-- name: schedule_lock
select version from trellis_schedule where service = ? and name = ? and version = ?

-- name: schedule_add
insert into trellis_schedule (service, name, version, next_slot, retired_at, body)
values (?, ?, 1, ?, ?, ?) on conflict do nothing

-- name: schedule_set
update trellis_schedule set version = version + 1, next_slot = ?, retired_at = ?, body = ?
where service = ? and name = ?

-- name: slot_known
select slot from trellis_schedule_slot
where service = ? and name = ? and slot in (select value from json_each(?))

-- name: slot_add
insert into trellis_schedule_slot
  (service, name, slot, outcome, late, why, through, job, decided_at)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: slot_list
select slot, outcome, late, why, through, job, decided_at from trellis_schedule_slot
where service = ? and name = ? and slot < ? order by slot desc limit ?

-- name: slot_prune
delete from trellis_schedule_slot where service = ? and name = ? and slot < ?
