insert into trellis.event (xid, job, at, session, token, version, attempt, state, kind, data)
values (pg_current_xact_id()::text::bigint, $1, $2, $3, $4, $5, $6, $7::text::trellis.state, $8, $9)
