-- The queue rows of new jobs that differ in nothing but number and lane.
insert into trellis_queue (
  job, lane, park, state, version, generation, attempt, claims, crashes, run_at, blocked, suspect
)
select seq, lane, ?, ?, ?, ?, 0, ?, 0, ?, 0, 0 from trellis_job where seq > ?
