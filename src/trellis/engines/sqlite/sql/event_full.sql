insert into trellis_event (job, version, kind, state, at, attempt, session, token, data)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)
