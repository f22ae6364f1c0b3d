-- Contracts of services.

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
delete from trellis_contract where service = ? and number <= ?
