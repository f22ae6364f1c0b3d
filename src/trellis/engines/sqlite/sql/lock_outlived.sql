-- Locks of attempts that are over: nobody may ever ask for these names again.
delete from trellis_lock
where session = ? and token <> 0 and linger_until is null
  and not exists (
    select 1 from trellis_queue q
    where q.session = trellis_lock.session and q.token = trellis_lock.token)
