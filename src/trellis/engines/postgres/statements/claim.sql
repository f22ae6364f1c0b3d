-- Taking due jobs for a session.

-- name: claim
-- Take due jobs of some lanes for a session, with their journal and slots, and report whether
-- something must be done first (flags: 1 session over, 2 delayed jobs are due, 4 jobs of callers
-- wait, 8 new lanes or changed limits, 16 another aging).
-- $1 session, $2 lanes, $3 the rank from which each lane is read, $4 how many to read of each,
-- $5 first token, $6 how many lanes and changes of limits the caller knows, $7 flags that were dealt with,
-- $8 priorities, $9 demands, $10 how many of each demand, $11 how many in all, $12 the policy that
-- the worker declares for each lane; null: the one in force stays. $13 the span of aging that the
-- caller knows.
with open as materialized (
  select l.* from unnest($2::int[], $3::bigint[], $4::int[], $8::int[], $9::int[], $12::int[])
    l(lane, start, take, priority, demand, policy)
  where not exists (
    select 1 from trellis.lane n
    join trellis.queue_setting p on p.service = n.service and p.queue = n.queue
    where n.id = l.lane and p.paused)),
-- include: claim_read
-- A lane of which as many were read as asked, though more could be taken, may have more: what comes
-- after its last one must wait.
bound as materialized (
  select class, at, job from (
    select class, at, job, take, demand, count(*) over lane as found,
      row_number() over (lane order by at desc, job desc) as back
    from found window lane as (partition by lane)) f
  where back = 1 and found >= take and take < least($11::int, ($10::int[])[demand + 1])
  order by class, at, job limit 1),
placed as materialized (
  select f.tid, f.job, f.policy, f.class, f.at, f.demand,
    row_number() over (partition by f.demand order by f.class, f.at, f.job) as place
  from found f
  where not exists (
    select 1 from bound b where (f.class, f.at, f.job) > (b.class, b.at, b.job))),
picked as materialized (
  select p.tid, p.job, p.policy from placed p
  where p.place <= ($10::int[])[p.demand + 1]
  order by p.class, p.at, p.job limit $11),
-- include: claim_tail

-- name: claim_limited
-- `claim` for lanes of which some are limited. Further parameters: $14 how many could be taken of each
-- lane, $15 and $16 the limits of its queue and its type (a position in $17; 0: none), $17 how many of
-- each limit, $18 how many of limited lanes in all.
with open as materialized (
  select l.* from unnest($2::int[], $3::bigint[], $4::int[], $8::int[], $9::int[], $12::int[],
                         $14::int[], $15::int[], $16::int[])
    l(lane, start, take, priority, demand, policy, most, queue_limit, type_limit)
  where not exists (
    select 1 from trellis.lane n
    join trellis.queue_setting p on p.service = n.service and p.queue = n.queue
    where n.id = l.lane and p.paused)),
-- include: claim_read
bound as materialized (
  select class, at, job from (
    select f.class, f.at, f.job, f.take, l.most, count(*) over lane as found,
      row_number() over (lane order by f.at desc, f.job desc) as back
    from found f join open l on l.lane = f.lane window lane as (partition by f.lane)) x
  where back = 1 and found >= take and take < most
  order by class, at, job limit 1),
placed as materialized (
  select f.tid, f.job, f.policy, f.class, f.at, f.demand, l.queue_limit, l.type_limit,
    l.queue_limit + l.type_limit > 0 as is_limited,
    ($10::int[])[f.demand + 1] as of_demand,
    case when l.queue_limit > 0 then ($17::int[])[l.queue_limit] end as of_queue,
    case when l.type_limit > 0 then ($17::int[])[l.type_limit] end as of_type
  from found f join open l on l.lane = f.lane
  where not exists (
    select 1 from bound b where (f.class, f.at, f.job) > (b.class, b.at, b.job))),
judged as materialized (
  select p.*, row_number() over (partition by demand order by class, at, job) <= of_demand
    and (of_queue is null
      or row_number() over (partition by queue_limit order by class, at, job) <= of_queue)
    and (of_type is null
      or row_number() over (partition by type_limit order by class, at, job) <= of_type)
    and (not is_limited
      or row_number() over (partition by is_limited order by class, at, job) <= $18::int) as fits
  from placed p),
-- A job that does not fit counts against the jobs after it, although it is not taken. Where that
-- could have kept back a job, the claim ends; the next round goes on there.
unsure as materialized (
  select class, at, job from (
    select j.*, count(*) filter (where fits) over (partition by demand order by class, at, job)
        >= of_demand
      or coalesce(count(*) filter (where fits)
          over (partition by queue_limit order by class, at, job) >= of_queue, false)
      or coalesce(count(*) filter (where fits)
          over (partition by type_limit order by class, at, job) >= of_type, false)
      or (is_limited and count(*) filter (where fits)
          over (partition by is_limited order by class, at, job) >= $18::int) as is_kept_back
    from judged j) x
  where not fits and not is_kept_back
  order by class, at, job limit 1),
picked as materialized (
  select j.tid, j.job, j.policy from judged j
  where j.fits and not exists (
    select 1 from unsure u where (j.class, j.at, j.job) > (u.class, u.at, u.job))
  order by j.class, j.at, j.job limit $11),
-- include: claim_tail

-- name: claim_lane
-- `claim` for one lane: nothing to merge.
-- $1 session, $2 lane, $3 the rank from which it is read, $4 how many, $5 first token, $6 known lanes
-- and changes,
-- $7 flags done, $8 declared policy: each as in `claim`.
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
    + case when (select count(*) from trellis.lane)
        + (select coalesce(max(version), 0) from trellis.job_limit) <> $6::int then 8 else 0 end) as flags
  from (select trellis.clock() as now) s),
picked as materialized (
  select q.ctid as tid, q.job, coalesce($8::int, q.policy) as policy
  from trellis.queue q
  where q.lane = $2 and q.availability = 'ready' and coalesce(q.rank, q.run_at) >= $3
    and (q.look_at is null or q.look_at > (select now from look))
    and (select flags = 0 from look) and (select yes from open)
  order by coalesce(q.rank, q.run_at), q.job limit $4 for update of q skip locked),
-- include: claim_tail

-- fragment: claim_read
-- What every claim of several lanes reads: the flags, and the first jobs of each lane in `open`.
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
    + case when (select count(*) from trellis.lane)
        + (select coalesce(max(version), 0) from trellis.job_limit) <> $6::int then 8 else 0 end
    + case when (select p.aging from trellis.queue_setting p
                 where p.service = '*' and p.queue = '*') is distinct from $13::bigint
      then 16 else 0 end) as flags
  from (select trellis.clock() as now) s),
-- The order of claims: class, at, job; see `claim_order` in core/fairness.py.
found as materialized (
  select q.tid, q.job, q.rank - coalesce(l.priority * $13::bigint, 0) as at,
    coalesce(l.policy, q.policy) as policy, l.lane,
    case when $13::bigint is null then -l.priority else 0 end as class, l.demand, l.take
  from look
  cross join open l
  cross join lateral (
    select x.ctid as tid, x.job, coalesce(x.rank, x.run_at) as rank, x.policy from trellis.queue x
    where x.lane = l.lane and x.availability = 'ready' and coalesce(x.rank, x.run_at) >= l.start
      and (x.look_at is null or x.look_at > look.now)
    order by coalesce(x.rank, x.run_at), x.job limit l.take for update skip locked) q
  where look.flags = 0),

-- fragment: claim_tail
-- What every claim does with the jobs in `picked`, at the moment in `look`. $1 session, $5 first token.
-- A timeout that the creator asked for replaces that of the policy, with the same slack of 5 seconds.
taken as (
  update trellis.queue q
  set availability = 'claimed', state = 'active', version = q.version + 1, attempt = q.attempt + 1,
      claims = q.claims + 1, session = $1, token = $5::bigint + q.job,
      claimed_at = look.now, seen_at = null, policy = k.policy,
      dedupe = case when q.dedupe_unfinished then q.dedupe end,
      look_at = least(
        j.deadline_at, look.now + coalesce(j.timeout + 5000000, w.times_out_after),
        look.now + w.silent_after)
  from look, picked k
  cross join lateral (
    select * from trellis.job x where x.seq = k.job limit 1) j
  cross join lateral (
    select x.times_out_after, x.silent_after from trellis.policy x
    where x.id = coalesce(k.policy, j.policy) limit 1) w
  where q.ctid = k.tid
  returning q.job, q.lane, q.rank, q.version, q.attempt, q.token, q.key_hash, j.id, j.policy,
    q.policy as declared, j.payload, j.created_at, j.traceparent,
    case when num_nonnulls(j.request_id, j.tracestate, j.deadline_at, j.key, j.tags, j.config,
                           j.expect, j.clone_of, j.dedupe, j.attempts, j.timeout,
                           j.relations) > 0 or j.schema_version <> 1
         then json_build_array(j.request_id, j.tracestate, j.deadline_at, j.key, q.key_hash, j.tags,
                               j.config, j.expect, j.schema_version, j.clone_of, j.dedupe,
                               j.dedupe_while, j.dedupe_until, j.attempts, j.timeout, j.relations)::text
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
select look.now, look.flags, t.job, t.id, t.lane, t.policy, t.declared, t.payload, t.created_at,
  t.traceparent, t.extras, t.head, t.rank
from look left join taken t on true

-- name: claim_none
-- `claim` while there is no lane to claim from: only the flags. $1 session, $2 known lanes and changes,
-- $3 flags done.
select trellis.clock(), ~$3::int & (
    case when exists (select 1 from trellis.session o where o.id = $1 and o.ended_at is null)
         then 0 else 1 end
    + case when (select count(*) from trellis.lane)
        + (select coalesce(max(version), 0) from trellis.job_limit) <> $2::int then 8 else 0 end), null::bigint

-- name: claim_waiting
-- Those of these lanes, of queues that are not paused, that have a claimable job, or one that is due.
select l.lane from (select trellis.clock() as now offset 0) s
cross join unnest($1::int[]) l(lane)
cross join lateral (
  (select 1 from trellis.queue q where q.lane = l.lane and q.availability = 'ready' limit 1)
  union all
  (select 1 from trellis.queue q
   where q.lane = l.lane and q.availability = 'scheduled' and q.run_at <= s.now limit 1)
  limit 1) w
where not exists (
  select 1 from trellis.lane n
  join trellis.queue_setting p on p.service = n.service and p.queue = n.queue
  where n.id = l.lane and p.paused)
