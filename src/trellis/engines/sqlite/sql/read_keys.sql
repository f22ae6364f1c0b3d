select k.key, k.key_hash,
  (select json_group_array(id) from (
     select j.id from trellis_key_slot s join trellis_job j on j.seq = s.job
     where s.key_hash = k.key_hash order by s.job)),
  (select count(*) from trellis_queue q
   where q.key_hash = k.key_hash and q.park <> 'taken'
     and not exists (
       select 1 from trellis_key_slot s where s.job = q.job and s.linger_until is null)),
  exists (select 1 from trellis_queue q where q.key_hash = k.key_hash and q.blocked = 1)
from (
  select distinct j.key, j.key_hash
  from (select job from trellis_queue where key_hash is not null
        union select job from trellis_key_slot) used
  join trellis_job j on j.seq = used.job
  join trellis_lane l on l.id = j.lane
  where l.service = ? and l.type = ?
) k
order by k.key
