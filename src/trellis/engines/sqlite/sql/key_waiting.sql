-- Waiting jobs of a key that hold no slot of their own.
select count(*)
from trellis_queue q
where q.key_hash = ? and q.park <> 'taken'
  and not exists (
    select 1 from trellis_key_slot s where s.job = q.job and s.linger_until is null)
