select o.generation, o.state::text, o.attempt, o.started_at, o.finished_at, o.result, o.error
from trellis.job j join trellis.outcome o on o.job = j.seq
where j.id = $1 order by o.generation
