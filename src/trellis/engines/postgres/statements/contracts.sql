-- Contracts of services.

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
delete from trellis.contract where service = $1 and number <= $2
