select paused, draining from trellis_queue_setting where service = ? and queue = ?
