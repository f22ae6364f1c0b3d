insert into trellis.queue_setting (service, queue, paused, draining) values ($1, $2, $3, $4)
on conflict (service, queue) do update set paused = excluded.paused, draining = excluded.draining
