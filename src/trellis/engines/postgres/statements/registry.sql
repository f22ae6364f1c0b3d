-- The numbers of lanes and policies.

-- name: lane_add
insert into trellis.lane (service, queue, type, priority)
select * from unnest($1::text[], $2::text[], $3::text[], $4::int[])
on conflict do nothing

-- name: lane_list
select id, service, queue, type, priority from trellis.lane

-- name: policy_add
insert into trellis.policy (digest, body, active, is_rated, times_out_after, silent_after)
select * from unnest($1::text[], $2::text[], $3::int[], $4::bool[], $5::bigint[], $6::bigint[])
on conflict do nothing

-- name: policy_find
select p.digest, p.id from unnest($1::text[]) n(digest) join trellis.policy p on p.digest = n.digest

-- name: policy_load
select p.id, p.body from unnest($1::int[]) n(id) join trellis.policy p on p.id = n.id

-- name: type_put
-- Remember the queue, policy and schema version of each type that no worker has declared, for jobs
-- that are created from SQL.
insert into trellis.job_type as t (service, type, queue, policy, schema_version, is_declared)
select d.*, false from unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::int[]) d
on conflict (service, type) do update
set queue = excluded.queue, policy = excluded.policy, schema_version = excluded.schema_version
where not t.is_declared and (t.queue, t.policy, t.schema_version) is distinct from
  (excluded.queue, excluded.policy, excluded.schema_version)
