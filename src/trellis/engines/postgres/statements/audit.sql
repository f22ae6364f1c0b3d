-- The audit of operators' changes.

-- name: audit_add
-- An array for each column; the numbers follow the order of the rows.
insert into trellis.audit (at, actor, action, target, before, after, reason)
select n.at, n.actor, n.action, n.target, n.before, n.after, n.reason
from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
  with ordinality n(at, actor, action, target, before, after, reason, place)
order by n.place

-- name: audit_list
-- The latest first. $1 actor, $2 beginning of the action, $3 target, $4 since, $5 until, $6 the
-- number of the entry before the page, $7 how many.
select a.number, a.at, a.actor, a.action, a.target, a.before, a.after, a.reason
from trellis.audit a
where a.number < $6
  and ($1::text is null or a.actor = $1)
  and ($2::text is null or a.action = $2 or starts_with(a.action, $2 || '.'))
  and ($3::text is null or a.target = $3)
  and ($4::bigint is null or a.at >= $4)
  and ($5::bigint is null or a.at < $5)
order by a.number desc limit $7

-- name: audit_prune
with old as materialized (
  select ctid as tid from trellis.audit where at < $1 order by at limit $2)
delete from trellis.audit a using old where a.ctid = old.tid returning 1

-- name: audit_prune_peek
select 1 from trellis.audit where at < $1 limit 1
