with old as materialized (
  select ctid as tid from trellis.session
  where ended_at is not null and ended_at <= $1 order by ended_at, number limit $2)
delete from trellis.session s using old where s.ctid = old.tid returning 1
