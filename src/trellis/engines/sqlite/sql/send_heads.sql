-- A job that was never claimed has its slot by its place in the line only, which it keeps.
select q.job, q.run_at, q.state, q.version, q.attempt, q.claims, q.generation, q.crashes, q.blocked,
  q.suspect, q.claimed_at, q.asked_at, q.look_at, q.key_hash, q.dedupe, q.error,
  q.claims > 0 and exists (
    select 1 from trellis_key_slot s where s.job = q.job and s.linger_until is null)
from json_each(?) picked join trellis_queue q on q.job = picked.value order by q.job
