-- Keep the sign of life of attempts; what an earlier attempt said is forgotten.
with said as (
  select * from unnest($1::bigint[], $2::int[]) n(job, claim)),
forgotten as (
  delete from trellis.item i using said s, trellis.note n
  where n.job = s.job and n.claim <> s.claim and i.job = s.job)
insert into trellis.note (job, claim, seen_at)
select job, claim, $3 from said
on conflict (job) do update
set seen_at = excluded.seen_at, claim = excluded.claim,
    began_at = case when trellis.note.claim = excluded.claim then trellis.note.began_at end,
    progress = case when trellis.note.claim = excluded.claim then trellis.note.progress end,
    phase = case when trellis.note.claim = excluded.claim then trellis.note.phase end
