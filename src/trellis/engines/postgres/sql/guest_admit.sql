-- Let keyed jobs that came in callers' transactions wait for their slots like everybody else; one that
-- somebody is changing now is for the next time. Returns the keys of those that were let in.
update trellis.queue q set park = 'slot'
from (
  select x.ctid as tid from trellis.queue x
  where x.job = any($1::bigint[]) and x.park = 'guest' for update skip locked) g
where q.ctid = g.tid
returning q.key_hash
