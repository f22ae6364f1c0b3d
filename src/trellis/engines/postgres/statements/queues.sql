-- Settings of queues.

-- name: queue_set
insert into trellis.queue_setting (service, queue, paused, draining) values ($1, $2, $3, $4)
on conflict (service, queue) do update set paused = excluded.paused, draining = excluded.draining

-- name: queue_setting
select paused, draining from trellis.queue_setting where service = $1 and queue = $2 for update

-- name: queue_settings
select service, queue, paused, draining from trellis.queue_setting where service <> '*'
order by service collate "C", queue collate "C"

-- name: aging
-- The span after which a waiting job counts one priority higher; null: it never does.
select aging from trellis.queue_setting where service = '*' and queue = '*'

-- name: aging_set
insert into trellis.queue_setting (service, queue, paused, draining, aging)
values ('*', '*', false, false, $1)
on conflict (service, queue) do update set aging = excluded.aging

-- name: drain_add
insert into trellis.drain_change (at, is_on, actor, reason) values ($1, $2, $3, $4)

-- name: drain_list
select at, is_on, actor, reason from trellis.drain_change order by number desc limit $1
