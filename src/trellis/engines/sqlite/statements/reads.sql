-- Questions of people and programs; nothing is changed.

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
select 1 from trellis_removal where id = ?
