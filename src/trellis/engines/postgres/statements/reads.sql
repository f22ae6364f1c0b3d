-- Reads for people and programs; they change nothing.

-- name: read_feed
-- Events after a position in the feed, in its order, up to what no running transaction can add to.
select e.xid, e.seq, j.id, e.kind, e.version, e.state::text, e.at, e.attempt, e.session, e.token, e.data
from trellis.event e join trellis.job j on j.seq = e.job
where e.xid >= $1 and (e.xid, e.seq) > ($1, $2)
  and e.xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
order by e.xid, e.seq limit $3

-- name: read_items
select name, status, detail from trellis.item where job = $1 order by name collate "C"

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
  exists (select 1 from trellis.queue q where q.key_hash = k.key_hash and q.blocked)
from (
  select distinct j.key, j.key_hash
  from (select job from trellis.queue where key_hash is not null
        union select job from trellis.key_slot) used
  join trellis.job j on j.seq = used.job
  join trellis.lane l on l.id = j.lane
  where l.service = $1 and l.type = $2) k
order by k.key collate "C"

-- name: read_logs
select g.number, g.at, g.claim, g.level, g.message, g.fields
from trellis.job j join trellis.log g on g.job = j.seq
where j.id = $1 and g.number > $2 order by g.number limit $3

-- name: read_note
select n.job, n.claim, n.began_at, n.seen_at, n.progress, n.phase
from trellis.record r join trellis.note n on n.job = r.seq and n.claim = r.claims
where r.id = $1

-- name: read_outcomes
select o.generation, o.state::text, o.attempt, o.started_at, o.finished_at, o.result, o.error
from trellis.job j join trellis.outcome o on o.job = j.seq
where j.id = $1 order by o.generation

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
select count(*), {groups} from trellis.record where {where} group by {groups}

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

-- fragment: where_tag
tags::jsonb @> jsonb_build_object(?::text, ?::text)

-- fragment: where_key
key = ?::text

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

-- fragment: group_error
coalesce(error::json ->> 0, '')
