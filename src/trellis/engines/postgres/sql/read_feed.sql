-- Events after a place in the feed, in its order, up to what no running transaction can add to.
select e.xid, e.seq, j.id, e.kind, e.version, e.state::text, e.at, e.attempt, e.session, e.token, e.data
from trellis.event e join trellis.job j on j.seq = e.job
where e.xid >= $1 and (e.xid, e.seq) > ($1, $2)
  and e.xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
order by e.xid, e.seq limit $3
