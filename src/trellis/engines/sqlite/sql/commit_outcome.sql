-- A success: no error to keep.
insert into trellis_outcome (
  job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
  result, keep_until
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
