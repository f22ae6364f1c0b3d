select service, queue, paused, draining from trellis.queue_setting
order by service collate "C", queue collate "C"
