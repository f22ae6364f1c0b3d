insert into trellis_job (
  seq, id, lane, policy, payload, created_at, request_id, traceparent, tracestate, deadline_at,
  key, key_hash, tags, config, expect, schema_version, clone_of
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
