-- Where waiting jobs stand. One whose moment has come is claimable if it needs no slot or has one.
-- $1 jobs, $2 lanes, then columns in the order of the table.
insert into trellis.queue (
  job, pos, lane, park, run_at, state, version, attempt, claims, generation, crashes, blocked,
  suspect, claimed_at, asked_at, look_at, key_hash, dedupe, error)
select d.job, d.job, d.lane,
  case when d.run_at > trellis.clock() then 'later'
       when d.key_hash is null or exists (select 1 from trellis.key_slot s where s.job = d.job)
         then 'ready'
       else 'slot' end::trellis.park,
  d.run_at, d.state::trellis.state, d.version, d.attempt, d.claims, d.generation, d.crashes,
  d.blocked, d.suspect, d.claimed_at, d.asked_at, d.look_at, d.key_hash, d.dedupe, d.error
from unnest(
  $1::bigint[], $2::int[], $3::bigint[], $4::text[], $5::int[], $6::int[], $7::int[], $8::int[],
  $9::int[], $10::bool[], $11::bool[], $12::bigint[], $13::bigint[], $14::bigint[], $15::text[],
  $16::text[], $17::text[])
  d(job, lane, run_at, state, version, attempt, claims, generation, crashes, blocked, suspect,
    claimed_at, asked_at, look_at, key_hash, dedupe, error)
