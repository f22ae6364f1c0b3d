-- Reads for people and programs; they change nothing.

-- name: read_items
select name, status, detail from trellis_item where job = ? order by name

-- name: read_journal
select e.kind, e.version, e.state, e.at, e.attempt, e.session, e.token, e.data
from trellis_job j join trellis_event e on e.job = j.seq
where j.id = ? order by e.seq

-- name: read_keys
select k.key, k.key_hash,
  (select json_group_array(id) from (
     select j.id from trellis_key_slot s join trellis_job j on j.seq = s.job
     where s.key_hash = k.key_hash order by s.job)),
  (select count(*) from trellis_queue q
   where q.key_hash = k.key_hash and q.availability <> 'claimed'
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

-- name: read_logs
select g.number, g.at, g.claim, g.level, g.message, g.fields
from trellis_job j join trellis_log g on g.job = j.seq
where j.id = ? and g.number > ? order by g.number limit ?

-- name: read_note
select n.job, n.claim, n.began_at, n.seen_at, n.progress, n.phase
from trellis_record r join trellis_note n on n.job = r.seq and n.claim = r.claims
where r.id = ?

-- name: read_outcomes
select o.generation, o.state, o.attempt, o.started_at, o.finished_at, o.result, o.error
from trellis_job j join trellis_outcome o on o.job = j.seq
where j.id = ? order by o.generation

-- name: read_removed
select id from trellis_removal where id in (select value from json_each(?))

-- fragment: find
-- A page of the jobs that match a filter. The filter is composed of the fragments `where_...`;
-- each `?` in one is a value.
select * from trellis_record where {where} and seq < coalesce(?, 9223372036854775807)
order by seq desc limit ?

-- fragment: count
select count(*), {groups} from trellis_record where {where} group by {groups}

-- fragment: count_all
select count(*) from trellis_record where {where}

-- fragment: where_service
service in (select value from json_each(?))

-- fragment: where_type
type in (select value from json_each(?))

-- fragment: where_queue
queue in (select value from json_each(?))

-- fragment: where_state
state in (select value from json_each(?))

-- fragment: where_tag
exists (select 1 from json_each(tags) t where t.key = ? and t.value = ?)

-- fragment: where_key
key = ?

-- fragment: where_created_from
created_at >= ?

-- fragment: where_created_before
created_at < ?

-- fragment: where_finished_from
finished_at >= ?

-- fragment: where_finished_before
finished_at < ?

-- fragment: where_error
-- A function of Trellis, because databases differ in how they compare upper and lower case.
error is not null and trellis_mentions(error, ?)

-- fragment: where_id_prefix
substr(id, 1, length(?)) = ?

-- fragment: where_id_suffix
substr(id, length(id) + 1 - length(?)) = ?

-- fragment: group_state
state

-- fragment: group_type
type

-- fragment: group_queue
queue

-- fragment: group_service
service

-- fragment: group_error
coalesce(json_extract(error, '$[0]'), '')
