-- Reads for people and programs; they change nothing.

-- name: event_last
select last_value from trellis.event_seq_seq

-- name: rate_events
-- Of the latest events, per kind of job: how many began an attempt, how many ended one with an error.
-- $1 the kind that begins one, $2 the event before the first, $3 since when.
select l.service, l.queue, l.type, e.started, e.failed, e.first_at, e.number
from (
  select j.lane, count(*) filter (where x.kind = $1) as started,
    count(*) filter (where strpos(x.data, '"error": [') > 0) as failed,
    min(x.at) as first_at, count(*) as number
  from trellis.event x
  cross join lateral (select y.lane from trellis.job y where y.seq = x.job limit 1) j
  where x.seq > $2::bigint and x.at >= $3::bigint group by j.lane) e
join trellis.lane l on l.id = e.lane

-- name: rate_durations
-- How long the attempts took that ended jobs, of the latest events.
with recent as materialized (
  select x.job, x.version, x.seq from trellis.event x
  where x.seq > $1::bigint and x.at >= $2::bigint)
select l.service, l.queue, l.type, o.duration
from (select job, version from recent order by seq desc) e
cross join lateral (
  select x.finished_at - x.started_at as duration from trellis.outcome x
  where x.job = e.job and x.version = e.version and x.started_at is not null limit 1) o
cross join lateral (select y.lane from trellis.job y where y.seq = e.job limit 1) j
join trellis.lane l on l.id = j.lane
limit $3

-- name: rate_due_since
-- Since when jobs could have started: the first of each lane from its index, and those that wait
-- for their keys.
select l.service, l.queue, l.type, d.run_at from (
  select x.id as lane, q.run_at from trellis.lane x cross join lateral (
    select y.run_at from trellis.queue y
    where y.lane = x.id and y.availability = 'ready' order by coalesce(y.rank, y.run_at), y.job limit 1) q
  union all
  select x.id, q.run_at from trellis.lane x cross join lateral (
    select y.run_at from trellis.queue y
    where y.lane = x.id and y.availability = 'scheduled' order by y.run_at limit 1) q
  union all
  select q.lane, min(q.run_at) from trellis.queue q
  where q.key_hash is not null and q.availability in ('waiting_for_slot', 'unadmitted')
  group by q.lane) d
join trellis.lane l on l.id = d.lane
where d.run_at <= $1::bigint

-- name: read_facts
-- What people want to know of jobs beside their records.
select j.id, coalesce(o.started_at, n.began_at), u.at, w.session,
  coalesce(s.name, p.name), coalesce(s.host, p.host), coalesce(s.pid, p.pid), o.result
from unnest($1::text[]) b(id)
join trellis.job j on j.id = b.id
left join lateral (
  select e.at from trellis.event e
  where e.job = j.seq and e.version > 0 order by e.seq desc limit 1) u on true
left join lateral (
  select e.session from trellis.event e
  where e.job = j.seq and e.version > 0 and e.session is not null
  order by e.seq desc limit 1) w on true
left join trellis.queue q on q.job = j.seq
left join lateral (
  select x.started_at, x.claims, x.result from trellis.outcome x
  where q.job is null and x.job = j.seq order by x.generation desc limit 1) o on true
left join trellis.note n on n.job = j.seq and n.claim = coalesce(q.claims, o.claims)
left join trellis.session s on s.id = w.session
left join trellis.past_session p on p.id = w.session

-- name: read_items
select i.claim, i.phase, i.name, i.status, i.detail
from trellis.job j join trellis.item i on i.job = j.seq
where j.id = $1 order by i.claim, i.phase collate "C", i.name collate "C"

-- name: read_journal
select e.kind, e.version, e.state::text, e.at, e.attempt, e.session, e.token, e.data
from trellis.job j join trellis.event e on e.job = j.seq
where j.id = $1 order by e.seq

-- name: read_keys
select k.key, k.key_hash,
  array_to_json(array(
    select j.id from trellis.key_slot s join trellis.job j on j.seq = s.job
    where s.key_hash = k.key_hash order by s.job))::text,
  (select count(*) from trellis.queue q
   where q.key_hash = k.key_hash and q.availability <> 'claimed' and not exists (
     select 1 from trellis.key_slot s where s.job = q.job and s.linger_until is null)),
  exists (select 1 from trellis.queue q where q.key_hash = k.key_hash and q.blocked),
  coalesce(b.full_at, 0), coalesce(b.span, 0), coalesce(b.burst, 0),
  (select count(*) from trellis.key_slot s
   where s.key_hash = k.key_hash and not exists (select 1 from trellis.job j where j.seq = s.job))
from (
  select distinct j.key, j.key_hash
  from (select job from trellis.queue where key_hash is not null
        union select job from trellis.key_slot) used
  join trellis.job j on j.seq = used.job
  join trellis.lane l on l.id = j.lane
  where l.service = $1 and l.type = $2) k
left join trellis.key_bucket b on b.key_hash = k.key_hash
order by k.key collate "C"

-- name: read_logs
select g.number, g.at, g.claim, g.level, g.message, g.fields
from trellis.job j join trellis.log g on g.job = j.seq
where j.id = $1 and g.number > $2 order by g.number limit $3

-- name: read_note
select n.claim, n.began_at, n.seen_at, n.progress, n.phase
from trellis.record r join trellis.note n on n.job = r.seq and n.claim = r.claims
where r.id = $1

-- name: read_outcomes
select o.generation, o.state::text, o.attempt, o.started_at, o.finished_at, o.result, o.error
from trellis.job j join trellis.outcome o on o.job = j.seq
where j.id = $1 order by o.generation

-- name: read_ahead
-- How many claimable jobs of these types come before a job, at most so many of each lane.
select service, queue, type, sum(number)::bigint from (
  select l.service, l.queue, l.type, (
    select count(*) from (
      select 1 from trellis.queue q
      where q.lane = l.id and q.availability = 'ready'
        and (coalesce(q.rank, q.run_at), q.job) < (
          case when s.aging is not null
               then coalesce(me.rank, me.run_at) + (l.priority - own.priority) * s.aging
               when l.priority = own.priority then coalesce(me.rank, me.run_at)
               else 9223372036854775807 end,
          me.job)
      limit $1) before) as number
  from trellis.job j
  join trellis.queue me on me.job = j.seq
  join trellis.lane own on own.id = me.lane
  join trellis.lane l on l.service || '/' || l.type = any($2::text[])
  left join trellis.queue_setting s on s.service = '*' and s.queue = '*'
  where j.id = $3 and (s.aging is not null or l.priority >= own.priority)
    and not exists (
      select 1 from trellis.queue_setting p
      where p.service = l.service and p.queue = l.queue and p.paused)) lanes
where number > 0 group by service, queue, type

-- name: read_removed
select id from trellis.removal where id = any($1::text[])

-- fragment: find
-- A page of the jobs that match a filter. The filter is composed of the fragments `where_...`;
-- each `?` in one is a value, and becomes a numbered parameter.
select * from trellis.record where {where} and (${after}::bigint is null or seq < ${after})
order by seq desc limit ${limit}

-- fragment: find_errors
select distinct error from trellis.record where {where} and error is not null

-- fragment: count
select count(*), {groups} from trellis.record where {where} group by {places}

-- fragment: count_all
select count(*) from trellis.record where {where}

-- fragment: where_service
service = any(?::text[])

-- fragment: where_type
type = any(?::text[])

-- fragment: where_queue
queue = any(?::text[])

-- fragment: where_state
state = any(?::text[])

-- fragment: where_blocked
-- A blocked job keeps its session, and there is an index of those that have one.
seq in (select job from trellis.queue where session is not null and blocked)

-- fragment: where_tag
tags::jsonb @> jsonb_build_object(?::text, ?::text)

-- fragment: where_key
key = ?::text

-- fragment: where_tenant
relations::json ->> 'tenant' = ?

-- fragment: where_schedule
relations::json ->> 'schedule' = ?

-- fragment: where_created_from
created_at >= ?::bigint

-- fragment: where_created_before
created_at < ?::bigint

-- fragment: where_finished_from
finished_at >= ?::bigint

-- fragment: where_finished_before
finished_at < ?::bigint

-- fragment: where_error
-- The errors that contain the text are found first, because databases differ in how they compare
-- upper and lower case.
error = any(?::text[])

-- fragment: where_worker
exists (
  select 1 from trellis.event e where e.job = record.seq and e.session in (
    select s.id from trellis.session s where ?::text in (s.name, s.host, lpad(to_hex(s.id), 16, '0'))
    union all
    select p.id from trellis.past_session p where ?::text in (p.name, p.host, lpad(to_hex(p.id), 16, '0'))))

-- fragment: where_batch
seq in (select m.job from trellis.batch b join trellis.batch_member m on m.batch = b.seq
        where b.id = ?::text)

-- fragment: where_parent
relations is not null and relations::json ->> 'parent' = ?::text

-- fragment: where_id_prefix
starts_with(id, ?::text)

-- fragment: where_id_suffix
right(id, length(?::text)) = ?::text

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
    (select s.name from trellis.session s where s.id = e.session),
    (select p.name from trellis.past_session p where p.id = e.session))
  from trellis.event e where e.job = record.seq and e.session is not null
  order by e.seq desc limit 1), '')

-- fragment: group_tenant
coalesce(relations::json ->> 'tenant', '')

-- fragment: group_tag
coalesce(tags::json ->> ?::text, '')

-- fragment: group_error
coalesce(error::json ->> 0, '')
