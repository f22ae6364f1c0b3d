select e.kind, e.version, e.state, e.at, e.attempt, e.session, e.token, e.data
from trellis_job j join trellis_event e on e.job = j.seq
where j.id = ? order by e.seq
