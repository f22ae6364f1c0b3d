insert into trellis.outcome (
  job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at, error,
  result, keep_until)
select d.job, d.generation, d.state::trellis.state, d.version, d.attempt, d.claims, d.crashes,
  d.run_at, d.started_at, d.finished_at, d.error, d.result, d.keep_until
from unnest(
  $1::bigint[], $2::int[], $3::text[], $4::int[], $5::int[], $6::int[], $7::int[], $8::bigint[],
  $9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::bigint[])
  d(job, generation, state, version, attempt, claims, crashes, run_at, started_at, finished_at,
    error, result, keep_until)
