select o.job, o.generation, o.state, o.version, o.attempt, o.claims, o.crashes, o.run_at,
  o.started_at, o.finished_at, o.error, o.result, o.keep_until
from json_each(?) picked join trellis_outcome o on o.job = picked.value
