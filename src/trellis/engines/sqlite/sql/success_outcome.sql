-- Successes that differ from their queue rows only in what is given here. Guarded like `commit_end`:
-- a row whose version or fence does not hold is not stored.
insert into trellis_outcome (
  job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
  result, keep_until
)
select
  q.job, q.generation, ?, q.version + 1, q.attempt, q.claims, q.crashes, q.run_at, b.column4, ?,
  b.column6, b.column5
from (values (?, ?, ?, ?, ?, ?)) b
cross join trellis_queue q
  on q.job = b.column1 and q.version = b.column2 and q.token is b.column3
