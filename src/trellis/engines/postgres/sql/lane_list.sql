select id, service, queue, type, priority from trellis.lane
