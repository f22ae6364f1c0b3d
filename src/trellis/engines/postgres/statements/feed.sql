-- The feed of all events: ordered by transaction and number, up to what no running transaction can
-- add to.

-- name: feed_end
select pg_snapshot_xmin(pg_current_snapshot())::text::bigint, 0::bigint

-- name: feed_horizon
select xid, seq, at from trellis.feed_horizon order by xid desc, seq desc limit 1

-- name: feed_raise
-- Before the events of these jobs are removed: keep the position of the last of them. Rows are added,
-- never changed, so that two transactions that remove jobs do not wait for each other; earlier
-- rows that no other transaction removes go.
with last as materialized (
  select x.xid, x.seq, x.at from trellis.event x where x.job = any($1::bigint[])
  order by x.xid desc, x.seq desc limit 1),
gone as (
  delete from trellis.feed_horizon h using (
    select x.ctid as tid from trellis.feed_horizon x, last
    where (x.xid, x.seq) < (last.xid, last.seq) for update of x skip locked) old
  where h.ctid = old.tid)
insert into trellis.feed_horizon (xid, seq, at)
select last.xid, last.seq, last.at from last
where not exists (
  select 1 from trellis.feed_horizon x where (x.xid, x.seq) >= (last.xid, last.seq))

-- name: feed_read
-- $1, $2 the position, $3 the end of the window of transactions, $4 how many.
select e.xid, e.seq, j.id, l.service, l.type, l.queue, j.tags,
  e.kind, e.version, e.state::text, e.at, e.attempt, e.session, e.token, e.data
from (
  select * from trellis.event x
  where x.xid >= $1 and (x.xid, x.seq) > ($1, $2) and x.xid < $3
  order by x.xid, x.seq limit $4) e
left join lateral (
  select y.id, y.tags, y.lane from trellis.job y where y.seq = e.job limit 1) j on true
left join trellis.lane l on l.id = j.lane
order by e.xid, e.seq
