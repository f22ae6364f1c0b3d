-- What several verbs need: the clock, whole jobs, the journal, leases.

-- name: event
insert into trellis_event (job, version, kind, state, at, attempt) values (?, ?, ?, ?, ?, ?)

-- name: event_fenced
insert into trellis_event (job, version, kind, state, at, attempt, session, token)
values (?, ?, ?, ?, ?, ?, ?, ?)

-- name: event_full
insert into trellis_event (job, version, kind, state, at, attempt, session, token, data)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: record_by_id
select * from trellis_record where id in (select value from json_each(?))

-- name: record_by_seq
select * from trellis_record where seq in (select value from json_each(?))

-- name: session_lease
select lease, draining from trellis_session where id = ? and ended_at is null

-- name: outcome_lock
-- How these jobs ended last. The transaction is the only writer of the file, so no lock is needed.
select o.job, o.attempt, o.state
from json_each(?) b
cross join trellis_outcome o on o.job = b.value
where o.generation = (select max(x.generation) from trellis_outcome x where x.job = o.job)
