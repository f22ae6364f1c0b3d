select e.kind, e.version, e.state::text, e.at, e.attempt, e.session, e.token, e.data
from trellis.job j join trellis.event e on e.job = j.seq
where j.id = $1 order by e.seq
