insert into trellis_lane (service, queue, type, priority) values (?, ?, ?, ?)
