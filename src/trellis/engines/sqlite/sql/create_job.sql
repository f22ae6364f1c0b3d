-- A job that uses none of the optional columns: naming them all would cost more than the insert.
insert into trellis_job (
  seq, id, lane, policy, payload, created_at, traceparent, schema_version
) values (?, ?, ?, ?, ?, ?, ?, 1)
