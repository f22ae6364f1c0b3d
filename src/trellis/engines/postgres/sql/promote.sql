-- Make delayed jobs claimable, or let them wait for their key unless they still hold a slot of it.
with due as materialized (
  select q.ctid as tid from unnest($1::bigint[]) n(job) cross join lateral (
    select x.ctid from trellis.queue x
    where x.job = n.job and x.park = 'later' and x.run_at <= trellis.clock()
    for update skip locked) q)
update trellis.queue q
set park = case when q.key_hash is null or exists (
      select 1 from trellis.key_slot s where s.job = q.job and s.linger_until is null)
    then 'ready' else 'slot' end::trellis.park
from due where q.ctid = due.tid
returning q.job
