select e.job, e.version, e.kind, e.state, e.at, e.attempt, e.session, e.token, e.data
from json_each(?) picked join trellis_event e on e.job = picked.value order by e.seq
