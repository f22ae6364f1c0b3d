select service, queue from trellis.queue_setting where draining
