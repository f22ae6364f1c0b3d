insert into trellis.queue (
  job, pos, run_at, lane, park, state, version, attempt, claims, generation, crashes, blocked, suspect,
  key_hash, look_at)
select j.seq, j.seq, $2::bigint, j.lane, $3::text::trellis.park, $4::text::trellis.state, $5::int, 0,
  $6::int, $7::int, 0, false, false, j.key_hash, $8::bigint
from trellis.job j where j.seq = $1
