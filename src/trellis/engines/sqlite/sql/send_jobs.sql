select j.seq, j.id, l.service, l.queue, l.type, l.priority, p.body, j.schema_version, j.created_at,
  j.payload, j.request_id, j.traceparent, j.tracestate, j.deadline_at, j.key, j.key_hash, j.tags,
  j.config, j.expect, j.clone_of
from json_each(?) picked join trellis_job j on j.seq = picked.value
join trellis_lane l on l.id = j.lane join trellis_policy p on p.id = j.policy order by j.seq
