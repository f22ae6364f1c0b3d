-- Contracts of services, and what workers declare about job types.

-- name: contract_add
insert or ignore into trellis_contract
  (service, number, body, fingerprint, status, actor, reason, at)
values (?, ?, ?, ?, ?, ?, ?, ?)

-- name: contract_list
-- By service, the latest first. Bound: the first and the last service; how many.
select c.service, c.number, c.body, c.fingerprint, c.status, c.actor, c.reason, c.at
from trellis_contract c where c.service between ? and ?
order by c.service, c.number desc limit ?

-- name: contract_trim
-- Remove the records of a service up to a number, except the one that is deployed.
delete from trellis_contract as c where c.service = ? and c.number <= ?
  and c.number is not (
    select max(d.number) from trellis_contract d
    where d.service = c.service and d.status = 'deployed')

-- name: type_declare
insert or replace into trellis_job_type
  (service, type, queue, policy, schema_version, deadline)
values (?, ?, ?, ?, ?, ?)

-- name: type_list
select t.service, t.type, t.queue, p.body, t.schema_version, t.deadline
from trellis_job_type t join trellis_policy p on p.id = t.policy
order by t.service, t.type
