select service, queue, paused, draining from trellis_queue_setting order by service, queue
