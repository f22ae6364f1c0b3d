insert into trellis_event (job, version, kind, state, at, attempt, session, token)
select q.job, q.version + 1, ?, ?, ?, q.attempt, q.session, q.token
from json_each(?) b
cross join trellis_queue q on q.job = b.value
