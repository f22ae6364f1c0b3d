-- Settings of queues.

-- name: queue_set
insert into trellis.queue_setting (service, queue, paused, draining) values ($1, $2, $3, $4)
on conflict (service, queue) do update set paused = excluded.paused, draining = excluded.draining

-- name: queue_settings
select service, queue, paused, draining from trellis.queue_setting
order by service collate "C", queue collate "C"
