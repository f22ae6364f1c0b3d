-- Taking due jobs for a session.

-- name: claim
-- Take due jobs of some lanes for a session, with their journal and slots, and report whether
-- something must be done first (flags: 1 session over, 2 delayed jobs are due, 4 jobs of callers
-- wait, 8 new lanes).
-- $1 session, $2 lanes, $3 where each lane's scan starts, $4 how many to read of each,
-- $5 first token, $6 how many lanes the caller knows, $7 flags that were dealt with,
-- $8 priorities, $9 demands, $10 how many of each demand, $11 how many in all.
with open as materialized (
  select l.* from unnest($2::int[], $3::bigint[], $4::int[], $8::int[], $9::int[])
    l(lane, start, take, priority, demand)
  where not exists (
    select 1 from trellis.lane n
    join trellis.queue_setting p on p.service = n.service and p.queue = n.queue
    where n.id = l.lane and p.paused)),
look as materialized (
  select s.now, ~$7::int & (
    case when exists (select 1 from trellis.session o where o.id = $1 and o.ended_at is null)
         then 0 else 1 end
    + case when $7::int & 2 = 0 and exists (
        select 1 from open l cross join lateral (
          select 1 from trellis.queue q
          where q.lane = l.lane and q.availability = 'scheduled' and q.run_at <= s.now limit 1) due)
      then 2 else 0 end
    + case when $7::int & 4 = 0 and exists (
        select 1 from trellis.queue q where q.availability = 'unadmitted')
      then 4 else 0 end
    + case when (select count(*) from trellis.lane) <> $6::int then 8 else 0 end) as flags
  from (select trellis.clock() as now) s),
found as materialized (
  select q.tid, q.job, l.lane, -l.priority as rank, l.demand, l.take
  from look
  cross join open l
  cross join lateral (
    select x.ctid as tid, x.job from trellis.queue x
    where x.lane = l.lane and x.availability = 'ready' and x.pos >= l.start
      and (x.look_at is null or x.look_at > look.now)
    order by x.pos limit l.take for update skip locked) q
  where look.flags = 0),
-- A lane of which as many were read as asked, though more could be taken, may have more: what comes
-- after its last one must wait.
bound as materialized (
  select rank, last from (
    select rank, max(job) as last from found group by lane, rank, demand
    having count(*) >= min(take) and min(take) < least($11::int, ($10::int[])[demand + 1])) f
  order by rank, last limit 1),
placed as materialized (
  select f.tid, f.job, f.rank, f.demand,
    row_number() over (partition by f.demand order by f.rank, f.job) as place
  from found f
  where not exists (select 1 from bound b where (f.rank, f.job) > (b.rank, b.last))),
picked as materialized (
  select p.tid, p.job, p.rank from placed p
  where p.place <= ($10::int[])[p.demand + 1]
  order by p.rank, p.job limit $11),
-- include: claim_tail

-- name: claim_lane
-- `claim` for one lane: nothing to merge.
-- $1 session, $2 lane, $3 where the scan starts, $4 how many, $5 first token, $6 known lanes,
-- $7 flags done: each as in `claim`.
with open as materialized (
  select not exists (
    select 1 from trellis.lane n
    join trellis.queue_setting p on p.service = n.service and p.queue = n.queue
    where n.id = $2 and p.paused) as yes),
look as materialized (
  select s.now, ~$7::int & (
    case when exists (select 1 from trellis.session o where o.id = $1 and o.ended_at is null)
         then 0 else 1 end
    + case when $7::int & 2 = 0 and exists (
        select 1 from trellis.queue q, open
        where open.yes and q.lane = $2 and q.availability = 'scheduled' and q.run_at <= s.now)
      then 2 else 0 end
    + case when $7::int & 4 = 0 and exists (
        select 1 from trellis.queue q where q.availability = 'unadmitted')
      then 4 else 0 end
    + case when (select count(*) from trellis.lane) <> $6::int then 8 else 0 end) as flags
  from (select trellis.clock() as now) s),
picked as materialized (
  select q.ctid as tid, q.job
  from trellis.queue q
  where q.lane = $2 and q.availability = 'ready' and q.pos >= $3
    and (q.look_at is null or q.look_at > (select now from look))
    and (select flags = 0 from look) and (select yes from open)
  order by q.pos limit $4 for update of q skip locked),
-- include: claim_tail

-- fragment: claim_tail
-- What every claim does with the jobs in `picked`, at the moment in `look`. $1 session, $5 first token.
taken as (
  update trellis.queue q
  set availability = 'claimed', state = 'active', version = q.version + 1, attempt = q.attempt + 1,
      claims = q.claims + 1, session = $1, token = $5::bigint + q.job,
      claimed_at = look.now, dedupe = null, seen_at = null,
      look_at = least(j.deadline_at, look.now + w.watch)
  from look, picked k
  cross join lateral (
    select * from trellis.job x where x.seq = k.job limit 1) j
  cross join lateral (select x.watch from trellis.policy x where x.id = j.policy limit 1) w
  where q.ctid = k.tid
  returning q.job, q.lane, q.version, q.attempt, q.token, q.key_hash, j.id, j.policy, j.payload,
    j.created_at, j.traceparent,
    case when num_nonnulls(j.request_id, j.tracestate, j.deadline_at, j.key, j.tags, j.config,
                           j.expect, j.clone_of) > 0 or j.schema_version <> 1
         then json_build_array(j.request_id, j.tracestate, j.deadline_at, j.key, q.key_hash, j.tags,
                               j.config, j.expect, j.schema_version, j.clone_of)::text
    end as extras,
    case when q.version <> 2 or q.attempt <> 1 or q.claims <> 1 or q.generation <> 0
           or q.crashes <> 0 or q.suspect or q.error is not null or q.run_at <> j.created_at
         then json_build_array(q.version, q.generation, q.attempt, q.claims, q.crashes, q.run_at,
                               q.suspect, q.error)::text
    end as head),
journalled as (
  insert into trellis.event (xid, job, at, session, token, version, attempt, state, kind)
  select (select pg_current_xact_id()::text::bigint), t.job, look.now, $1, t.token, t.version,
    t.attempt, 'active', 'started'
  from look, taken t),
held as (
  update trellis.key_slot s set session = $1, token = k.token
  from (
    select x.tid, t.token from taken t cross join lateral (
      select y.ctid as tid from trellis.key_slot y
      where y.job = t.job and y.token is null and y.linger_until is null for update) x
    where t.key_hash is not null) k
  where s.ctid = k.tid)
select look.now, look.flags, t.job, t.id, t.lane, t.policy, t.payload, t.created_at, t.traceparent,
  t.extras, t.head
from look left join taken t on true

-- name: claim_none
-- `claim` while there is no lane to claim from: only the flags. $1 session, $2 known lanes, $3 flags done.
select trellis.clock(), ~$3::int & (
    case when exists (select 1 from trellis.session o where o.id = $1 and o.ended_at is null)
         then 0 else 1 end
    + case when (select count(*) from trellis.lane) <> $2::int then 8 else 0 end), null::bigint
