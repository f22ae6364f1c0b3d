-- The audit of operators' changes.

-- name: audit_add
insert into trellis_audit (at, actor, action, target, before, after, reason)
values (?, ?, ?, ?, ?, ?, ?)

-- name: audit_list
-- The latest first. Bound: actor, beginning of the action, target, since, until, the number of the
-- entry before the page, how many.
with wanted(actor, action, target, since, until, below) as (select ?, ?, ?, ?, ?, ?)
select a.number, a.at, a.actor, a.action, a.target, a.before, a.after, a.reason
from trellis_audit a
where a.number < (select below from wanted)
  and a.actor = coalesce((select actor from wanted), a.actor)
  and instr(a.action || '.', coalesce((select action from wanted) || '.', a.action)) = 1
  and a.target = coalesce((select target from wanted), a.target)
  and a.at >= coalesce((select since from wanted), a.at)
  and a.at < coalesce((select until from wanted), a.at + 1)
order by a.number desc limit ?

-- name: audit_prune
delete from trellis_audit where number in (
  select number from trellis_audit where at < ? order by at limit ?)

-- name: audit_prune_peek
select 1 from trellis_audit where at < ? limit 1
