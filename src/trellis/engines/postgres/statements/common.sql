-- What several verbs need: the clock, whole jobs, the journal, leases.

-- name: clock
select trellis.clock()

-- name: event_full
insert into trellis.event (xid, job, version, kind, state, at, attempt, session, token, data)
values (pg_current_xact_id()::text::bigint, $1, $2, $3, $4::text::trellis.state, $5, $6, $7, $8, $9)

-- name: outcome_lock
-- How these jobs ended last; none is revived, closed or removed until this transaction ends.
select o.job, o.attempt, o.state::text
from unnest($1::bigint[]) n(job)
cross join lateral (
  select x.job, x.attempt, x.state from trellis.outcome x
  where x.job = n.job order by x.generation desc limit 1 for update) o

-- name: record_by_id
select r.* from unnest($1::text[]) with ordinality n(id, place)
join trellis.record r on r.id = n.id order by n.place

-- name: record_by_seq
select r.* from unnest($1::bigint[]) n(seq) join trellis.record r on r.seq = n.seq

-- name: session_lease
select lease, draining from trellis.session where id = $1 and ended_at is null
