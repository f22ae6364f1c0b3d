select l.service, l.type, j.payload
from trellis_job j join trellis_lane l on l.id = j.lane
where j.id = ?
