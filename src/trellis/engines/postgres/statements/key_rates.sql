-- Rates of keys: their buckets, and when slots of a key may be handed over.

-- name: key_tokens
-- The bucket of a key, and how many of its jobs have a slot and have not started. One statement, so that
-- a claim of another process is seen in both or in neither.
select coalesce(b.full_at, 0), coalesce(b.span, 0), coalesce(b.burst, 0), (
  select count(*) from trellis.key_slot s join trellis.queue q on q.job = s.job
  where s.key_hash = k.key_hash and s.token is null and s.linger_until is null
    and q.availability = 'ready')
from (select $1::text as key_hash) k left join trellis.key_bucket b on b.key_hash = k.key_hash

-- name: key_bucket_lock
-- The buckets of these keys, locked in one order everywhere; a key without one gets a full one. The
-- clock is read when a bucket is locked: no claim before this one has taken tokens later.
insert into trellis.key_bucket (key_hash, full_at, span, burst)
select name, 0, 0, 0 from unnest($1::text[]) n(name) order by name
on conflict (key_hash) do update set key_hash = excluded.key_hash
returning key_hash, full_at, span, burst, trellis.clock()

-- name: key_bucket_put
insert into trellis.key_bucket (key_hash, full_at, span, burst)
select * from unnest($1::text[], $2::bigint[], $3::bigint[], $4::int[])
on conflict (key_hash) do update set full_at = excluded.full_at, span = excluded.span,
  burst = excluded.burst

-- name: key_bucket_rates
-- Of these keys, the buckets, and the rates of the keys of their types.
select b.key_hash, b.full_at, b.span, b.burst, trellis.clock(), m.declared, m.override
from unnest($1::text[]) n(name)
join trellis.key_bucket b on b.key_hash = n.name
cross join lateral (
  select q.lane from trellis.queue q where q.key_hash = n.name order by q.lane limit 1) q
join trellis.lane l on l.id = q.lane
join trellis.job_limit m on m.scope = 'key' and m.service = l.service and m.name = l.type

-- name: key_bucket_renew
-- Change buckets that are as they were read ($2); one that a claim has locked is changed by it.
update trellis.key_bucket b set full_at = n.full_at, span = n.span, burst = n.burst
from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::int[])
  n(key_hash, read, full_at, span, burst)
cross join lateral (
  select x.ctid as tid from trellis.key_bucket x
  where x.key_hash = n.key_hash and x.full_at = n.read for update skip locked) g
where b.ctid = g.tid

-- name: key_bucket_prune
-- Buckets that are full; one that a claim has locked is left for the next time.
delete from trellis.key_bucket b using (
  select x.ctid as tid from trellis.key_bucket x where x.full_at <= $1 for update skip locked) g
where b.ctid = g.tid

-- name: key_wake_add
insert into trellis.key_wake (key_hash, at, since)
select * from unnest($1::text[], $2::bigint[], $3::bigint[])

-- name: key_wake_due
select key_hash from (
  (select at, key_hash from trellis.key_wake where at <= $1 order by at, key_hash limit $2)
  union all
  (select at, key_hash from trellis.key_wake where since > $1 limit $2)) w
order by at, key_hash limit $2

-- name: key_wake_done
delete from trellis.key_wake where (at <= $1 or since > $1) and key_hash = any($2::text[])

-- name: key_wake_plan
-- Hand the key over at this moment ($3 is now), unless that happens before.
insert into trellis.key_wake (key_hash, at, since)
select $1::text, $2::bigint, $3::bigint where not exists (
  select 1 from trellis.key_wake w where w.key_hash = $1 and w.at <= $2)

-- name: key_wake_type
-- Hand over all keys of a type that have waiting jobs, at this moment.
insert into trellis.key_wake (key_hash, at, since)
select distinct q.key_hash, $1::bigint, $1::bigint from trellis.queue q join trellis.lane l on l.id = q.lane
where l.service = $2 and l.type = $3 and q.key_hash is not null
  and q.availability = 'waiting_for_slot'
