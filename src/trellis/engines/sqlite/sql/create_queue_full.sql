insert into trellis_queue (
  job, lane, park, state, version, generation, attempt, claims, crashes, run_at, blocked, suspect,
  key_hash, dedupe, look_at
) values (?, ?, ?, ?, ?, ?, 0, ?, 0, ?, 0, 0, ?, ?, ?)
