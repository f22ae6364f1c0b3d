-- Settings of queues.

-- name: queue_set
insert or replace into trellis_queue_setting (service, queue, paused, draining)
values (?, ?, ?, ?)

-- name: queue_setting
select paused, draining from trellis_queue_setting where service = ? and queue = ?

-- name: queue_settings
select service, queue, paused, draining from trellis_queue_setting order by service, queue
