-- The same for one lane alone: nothing to merge, so the limit can be given to SQLite, and the list
-- goes on to the next statements as it is.
select json_group_array(job)
from (
  select job from trellis_queue
  where lane = ? and park = 'ready' and (look_at is null or look_at > ?)
  order by job limit ?)
