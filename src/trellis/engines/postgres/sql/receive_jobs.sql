-- Store jobs in the order given; returns the number and id of each.
insert into trellis.job (
  id, lane, policy, schema_version, created_at, payload, request_id, traceparent, tracestate,
  deadline_at, key, key_hash, tags, config, expect, clone_of)
select d.id, d.lane, d.policy, d.schema_version, d.created_at, d.payload, d.request_id,
  d.traceparent, d.tracestate, d.deadline_at, d.key, d.key_hash, d.tags, d.config, d.expect,
  d.clone_of
from unnest(
  $1::text[], $2::int[], $3::int[], $4::int[], $5::bigint[], $6::text[], $7::text[], $8::text[],
  $9::text[], $10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[],
  $16::text[]) with ordinality
  d(id, lane, policy, schema_version, created_at, payload, request_id, traceparent, tracestate,
    deadline_at, key, key_hash, tags, config, expect, clone_of, place)
order by d.place
returning seq, id
