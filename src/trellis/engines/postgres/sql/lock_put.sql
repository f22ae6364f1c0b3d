insert into trellis.lock (name, session, token, taken_at) values ($1, $2, $3, $4)
on conflict (name) do update
set session = excluded.session, token = excluded.token, taken_at = excluded.taken_at,
    linger_until = null, job = null
