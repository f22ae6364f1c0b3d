select o.generation, o.state, o.attempt, o.started_at, o.finished_at, o.result, o.error
from trellis_job j join trellis_outcome o on o.job = j.seq
where j.id = ? order by o.generation
