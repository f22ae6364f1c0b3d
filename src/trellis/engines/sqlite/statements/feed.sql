-- The feed of all events. There is one writer, so their numbers are in commit order. Of the events
-- of removed jobs the last is kept, as one of job 0: it is the horizon of the feed, and its number
-- is not given to another event.

-- name: feed_end
select 0, coalesce(max(seq), 0) from trellis_event

-- name: feed_horizon
select 0, coalesce(max(seq), 0), (
  select at from trellis_event where job = 0 order by seq desc limit 1)
from trellis_event where job = 0

-- name: feed_raise
-- Before the events of these jobs are removed: keep the last of them.
update trellis_event set job = 0
where seq = (select max(seq) from trellis_event where job in (values (?)))

-- name: feed_read
-- Bound: the position, the end of the window of transactions, how many.
select 0, e.seq, j.id, l.service, l.type, l.queue, j.tags,
  e.kind, e.version, e.state, e.at, e.attempt, e.session, e.token, e.data
from (select ? as xid, ? as after, ? as until) b
cross join trellis_event e on e.seq > b.after
cross join trellis_job j on j.seq = e.job
cross join trellis_lane l on l.id = j.lane
order by e.seq limit ?
