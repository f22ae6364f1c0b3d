insert into trellis_queue (
  job, lane, park, state, version, generation, attempt, claims, crashes, run_at, blocked, suspect
) values (?, ?, ?, ?, ?, ?, 0, ?, 0, ?, 0, 0)
