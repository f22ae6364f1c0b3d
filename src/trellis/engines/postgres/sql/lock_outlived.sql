-- Locks of attempts that are over: nobody may ever ask for these names again.
delete from trellis.lock k
where k.session = $1 and k.token <> 0 and k.linger_until is null
  and not exists (
    select 1 from trellis.queue q where q.session = k.session and q.token = k.token)
