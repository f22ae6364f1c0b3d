insert or replace into trellis_queue_setting (service, queue, paused, draining)
values (?, ?, ?, ?)
