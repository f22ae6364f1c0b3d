insert into trellis.queue (
  job, pos, run_at, lane, park, state, version, attempt, claims, generation, crashes, blocked, suspect,
  key_hash, look_at)
values ($1, $1, $2, $3, $4::text::trellis.park, $5::text::trellis.state, $6, 0, $7, $8, 0, false, false, $9, $10)
