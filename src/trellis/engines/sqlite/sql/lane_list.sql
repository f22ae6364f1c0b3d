select id, service, queue, type, priority from trellis_lane where id > ?
