-- Contracts of services, and what workers declare about job types.

-- name: contract_add
insert into trellis.contract (service, number, body, fingerprint, status, actor, reason, at)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (service, number) do nothing returning number

-- name: contract_list
-- By service, the latest first. $1 the first and $2 the last service, $3 how many.
select c.service, c.number, c.body, c.fingerprint, c.status, c.actor, c.reason, c.at
from trellis.contract c where c.service collate "C" between $1 and $2
order by c.service collate "C", c.number desc limit $3

-- name: contract_trim
-- Remove the records of a service up to a number, except the one that is deployed.
delete from trellis.contract c where c.service = $1 and c.number <= $2
  and c.number is distinct from (
    select max(d.number) from trellis.contract d
    where d.service = c.service and d.status = 'deployed')

-- name: type_declare
insert into trellis.job_type as t
  (service, type, queue, policy, schema_version, deadline, is_declared)
select d.service, d.type, d.queue, d.policy, d.schema_version, d.deadline, true
from unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::int[], $6::bigint[])
  d(service, type, queue, policy, schema_version, deadline)
on conflict (service, type) do update
set queue = excluded.queue, policy = excluded.policy, schema_version = excluded.schema_version,
    deadline = excluded.deadline, is_declared = true
where (t.queue, t.policy, t.schema_version, t.deadline, t.is_declared) is distinct from
  (excluded.queue, excluded.policy, excluded.schema_version, excluded.deadline, true)

-- name: type_list
select t.service, t.type, t.queue, p.body, t.schema_version, t.deadline
from trellis.job_type t join trellis.policy p on p.id = t.policy
where t.is_declared order by t.service collate "C", t.type collate "C"
