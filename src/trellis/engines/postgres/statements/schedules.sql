-- Schedules and the ledger of their slots.

-- name: schedule_list
-- $1 services, $2 whether all are wanted.
select service, name, version, next_slot, retired_at, body from trellis.schedule
where service = any($1::text[]) or $2::boolean
order by service collate "C", name collate "C"

-- name: schedule_due
select service, name, version, next_slot, retired_at, body from trellis.schedule
where next_slot <= $1 order by next_slot, service collate "C", name collate "C" limit $2

-- name: schedule_next
select min(next_slot) from trellis.schedule where next_slot > $1

-- name: schedule_lock
select version from trellis.schedule where service = $1 and name = $2 and version = $3 for update

-- name: schedule_add
insert into trellis.schedule (service, name, version, next_slot, retired_at, body)
values ($1, $2, 1, $3, $4, $5) on conflict do nothing returning version

-- name: schedule_set
update trellis.schedule set version = version + 1, next_slot = $1, retired_at = $2, body = $3
where service = $4 and name = $5

-- name: slot_known
select slot from trellis.schedule_slot
where service = $1 and name = $2 and slot = any($3::bigint[])

-- name: slot_add
insert into trellis.schedule_slot
  (service, name, slot, outcome, late, why, through, job, decided_at)
select * from unnest(
  $1::text[], $2::text[], $3::bigint[], $4::text[], $5::boolean[], $6::text[], $7::bigint[],
  $8::text[], $9::bigint[])

-- name: slot_list
select slot, outcome, late, why, through, job, decided_at from trellis.schedule_slot
where service = $1 and name = $2 and slot < $3 order by slot desc limit $4

-- name: slot_prune
delete from trellis.schedule_slot where service = $1 and name = $2 and slot < $3
