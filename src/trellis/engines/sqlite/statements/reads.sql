-- Reads for people and programs; they change nothing.

-- name: event_last
select max(seq) from trellis_event

-- name: rate_events
-- Of the latest events, per kind of job: how many began an attempt, how many ended one with an error.
-- Bound: the kind that begins one, the event before the first, since when.
select l.service, l.queue, l.type, sum(e.kind = b.started),
  sum(instr(coalesce(e.data, ''), '"error": [') > 0),
  min(e.at), count(*)
from (select ? as started, ? as after, ? as since) b
cross join trellis_event e on e.seq > b.after and e.at >= b.since
cross join trellis_job j on j.seq = e.job
cross join trellis_lane l on l.id = j.lane
group by l.id

-- name: rate_durations
-- How long the attempts took that ended jobs, of the latest events.
select l.service, l.queue, l.type, o.finished_at - o.started_at
from (select ? as after, ? as since) b
cross join trellis_event e on e.seq > b.after and e.at >= b.since
cross join trellis_outcome o on o.job = e.job and o.version = e.version
cross join trellis_job j on j.seq = e.job
cross join trellis_lane l on l.id = j.lane
where o.started_at is not null
order by e.seq desc limit ?

-- name: rate_due_since
-- Since when jobs could have started: the first of each lane from its index, and those that wait
-- for their keys.
select l.service, l.queue, l.type, g.run_at
from (select ? as now) b
cross join (
  select k.id as lane, (select q.run_at from trellis_queue q
                        where q.lane = k.id and q.availability = 'ready'
                        order by coalesce(q.rank, q.run_at), q.job limit 1) as run_at
  from trellis_lane k
  union all
  select k.id, (select min(q.run_at) from trellis_queue q
                where q.lane = k.id and q.availability = 'scheduled')
  from trellis_lane k
  union all
  select q.lane, min(q.run_at) from trellis_queue q
  where q.key_hash is not null and q.availability = 'waiting_for_slot' group by q.lane) g
join trellis_lane l on l.id = g.lane
where g.run_at <= b.now

-- name: read_facts
-- What people want to know of jobs beside their records.
select f.id, coalesce(o.started_at, n.began_at), f.updated_at, f.session,
  coalesce(s.name, p.name), coalesce(s.host, p.host), coalesce(s.pid, p.pid), o.result
from (
  select j.id, j.seq,
    (select e.at from trellis_event e
     where e.job = j.seq and e.version > 0 order by e.seq desc limit 1) as updated_at,
    (select e.session from trellis_event e
     where e.job = j.seq and e.version > 0 and e.session is not null
     order by e.seq desc limit 1) as session
  from json_each(?) b cross join trellis_job j on j.id = b.value) f
left join trellis_queue q on q.job = f.seq
left join trellis_outcome o
  on q.job is null and o.job = f.seq
 and o.generation = (select max(x.generation) from trellis_outcome x where x.job = f.seq)
left join trellis_note n on n.job = f.seq and n.claim = coalesce(q.claims, o.claims)
left join trellis_session s on s.id = f.session
left join trellis_past_session p on p.id = f.session

-- name: read_items
select i.claim, i.phase, i.name, i.status, i.detail
from trellis_job j join trellis_item i on i.job = j.seq
where j.id = ? order by i.claim, i.phase, i.name

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
  exists (select 1 from trellis_queue q where q.key_hash = k.key_hash and q.blocked = 1),
  coalesce(b.full_at, 0), coalesce(b.span, 0), coalesce(b.burst, 0),
  (select count(*) from trellis_key_slot s
   where s.key_hash = k.key_hash and not exists (select 1 from trellis_job j where j.seq = s.job))
from (
  select distinct j.key, j.key_hash
  from (select job from trellis_queue where key_hash is not null
        union select job from trellis_key_slot) used
  join trellis_job j on j.seq = used.job
  join trellis_lane l on l.id = j.lane
  where l.service = ? and l.type = ?
) k
left join trellis_key_bucket b on b.key_hash = k.key_hash
order by k.key

-- name: read_logs
select g.number, g.at, g.claim, g.level, g.message, g.fields
from trellis_job j join trellis_log g on g.job = j.seq
where j.id = ? and g.number > ? order by g.number limit ?

-- name: read_note
select n.claim, n.began_at, n.seen_at, n.progress, n.phase
from trellis_record r join trellis_note n on n.job = r.seq and n.claim = r.claims
where r.id = ?

-- name: read_outcomes
select o.generation, o.state, o.attempt, o.started_at, o.finished_at, o.result, o.error
from trellis_job j join trellis_outcome o on o.job = j.seq
where j.id = ? order by o.generation

-- name: read_ahead
-- How many claimable jobs of these types come before a job, at most so many of each lane.
select service, queue, type, sum(number) from (
  select l.service, l.queue, l.type, (
    select count(*) from (
      select 1 from trellis_queue q
      where q.lane = l.id and q.availability = 'ready'
        and (coalesce(q.rank, q.run_at), q.job) < (
          case when s.aging is not null
               then coalesce(me.rank, me.run_at) + (l.priority - own.priority) * s.aging
               when l.priority = own.priority then coalesce(me.rank, me.run_at)
               else 9223372036854775807 end,
          me.job)
      limit ?) before) as number
  from trellis_job j
  join trellis_queue me on me.job = j.seq
  join trellis_lane own on own.id = me.lane
  join trellis_lane l on l.service || '/' || l.type in (select value from json_each(?))
  left join trellis_queue_setting s on s.service = '*' and s.queue = '*'
  where j.id = ? and (s.aging is not null or l.priority >= own.priority)
    and not exists (
      select 1 from trellis_queue_setting p
      where p.service = l.service and p.queue = l.queue and p.paused)) lanes
where number > 0 group by service, queue, type

-- name: read_removed
select id from trellis_removal where id in (select value from json_each(?))

-- fragment: find
-- A page of the jobs that match a filter. The filter is composed of the fragments `where_...`;
-- each `?` in one is a value.
select * from trellis_record where {where} and seq < coalesce(?, 9223372036854775807)
order by seq desc limit ?

-- fragment: count
select count(*), {groups} from trellis_record where {where} group by {places}

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

-- fragment: where_blocked
-- A blocked job keeps its session, and there is an index of those that have one.
seq in (select job from trellis_queue where session is not null and blocked = 1)

-- fragment: where_tag
exists (select 1 from json_each(tags) t where t.key = ? and t.value = ?)

-- fragment: where_key
key = ?

-- fragment: where_tenant
json_extract(relations, '$.tenant') = ?

-- fragment: where_schedule
json_extract(relations, '$.schedule') = ?

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

-- fragment: where_worker
exists (
  select 1 from trellis_event e where e.job = trellis_record.seq and e.session in (
    select s.id from trellis_session s where ? in (s.name, s.host, printf('%016x', s.id))
    union all
    select p.id from trellis_past_session p where ? in (p.name, p.host, printf('%016x', p.id))))

-- fragment: where_batch
seq in (select m.job from trellis_batch b join trellis_batch_member m on m.batch = b.seq
        where b.id = ?)

-- fragment: where_parent
relations is not null and json_extract(relations, '$.parent') = ?

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

-- fragment: group_worker
coalesce((
  select coalesce(
    (select s.name from trellis_session s where s.id = e.session),
    (select p.name from trellis_past_session p where p.id = e.session))
  from trellis_event e where e.job = trellis_record.seq and e.session is not null
  order by e.seq desc limit 1), '')

-- fragment: group_tenant
coalesce(json_extract(relations, '$.tenant'), '')

-- fragment: group_tag
coalesce((select t.value from json_each(tags) t where t.key = ?), '')

-- fragment: group_error
coalesce(json_extract(error, '$[0]'), '')
