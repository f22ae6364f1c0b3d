select r.* from (
  select h.job from trellis.queue h
  where h.session is not null and not h.blocked
    and not exists (select 1 from trellis.session s where s.id = h.session and s.ended_at is null)
  order by h.job limit $1) d
cross join lateral (select * from trellis.record x where x.seq = d.job limit 1) r
order by d.job
