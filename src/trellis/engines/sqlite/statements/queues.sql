-- Settings of queues.

-- name: queue_set
insert into trellis_queue_setting (service, queue, paused, draining) values (?, ?, ?, ?)
on conflict (service, queue) do update set paused = excluded.paused, draining = excluded.draining

-- name: queue_drains
-- Whether this queue or all of them accept nothing new; the row '*' stands for all.
select 1 from trellis_queue_setting where draining and service = ? and queue = ?
union all
select 1 from trellis_queue_setting where draining and service = '*' and queue = '*'

-- name: queue_setting
select paused, draining from trellis_queue_setting where service = ? and queue = ?

-- name: queue_settings
select service, queue, paused, draining from trellis_queue_setting
where service <> '*' order by service, queue

-- name: aging
-- The span after which a waiting job counts one priority higher; null: it never does.
select aging from trellis_queue_setting where service = '*' and queue = '*'

-- name: aging_set
insert into trellis_queue_setting (service, queue, paused, draining, aging)
values ('*', '*', 0, 0, ?)
on conflict (service, queue) do update set aging = excluded.aging

-- name: drain_add
insert into trellis_drain_change (at, is_on, actor, reason) values (?, ?, ?, ?)

-- name: drain_list
select at, is_on, actor, reason from trellis_drain_change order by number desc limit ?
