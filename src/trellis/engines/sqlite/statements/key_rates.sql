-- Rates of keys: their buckets, and when slots of a key may be handed over.

-- name: key_tokens
-- The bucket of a key, and how many of its jobs have a slot and have not started.
select coalesce(b.full_at, 0), coalesce(b.span, 0), coalesce(b.burst, 0), (
  select count(*) from trellis_key_slot s cross join trellis_queue q on q.job = s.job
  where s.key_hash = k.hash and s.token is null and s.linger_until is null
    and q.availability = 'ready')
from (select ? as hash) k left join trellis_key_bucket b on b.key_hash = k.hash

-- name: key_bucket_lock
-- The buckets of these keys; the transaction has the file for itself.
select n.value, coalesce(b.full_at, 0), coalesce(b.span, 0), coalesce(b.burst, 0), null
from json_each(?) n left join trellis_key_bucket b on b.key_hash = n.value

-- name: key_bucket_put
insert into trellis_key_bucket (key_hash, full_at, span, burst) values (?, ?, ?, ?)
on conflict (key_hash) do update set full_at = excluded.full_at, span = excluded.span,
  burst = excluded.burst

-- name: key_bucket_rates
-- Of these keys, the buckets, and the rates of the keys of their types.
select b.key_hash, b.full_at, b.span, b.burst, null, m.declared, m.override
from json_each(?) n
cross join trellis_key_bucket b on b.key_hash = n.value
cross join trellis_lane l on l.id = (
  select q.lane from trellis_queue q where q.key_hash = n.value order by q.lane limit 1)
cross join trellis_job_limit m on m.scope = 'key' and m.service = l.service and m.name = l.type

-- name: key_bucket_renew
-- Change buckets that are as they were read.
update trellis_key_bucket set full_at = b.column3, span = b.column4, burst = b.column5
from (values (?, ?, ?, ?, ?)) b where key_hash = b.column1 and full_at = b.column2

-- name: key_bucket_prune
delete from trellis_key_bucket where full_at <= ?

-- name: key_bucket_is_full
select 1 where exists (select 1 from trellis_key_bucket where full_at <= ?)

-- name: key_wake_add
insert into trellis_key_wake (key_hash, at, since) values (?, ?, ?)

-- name: key_wake_due
select w.key_hash from (select ? as now) given
cross join trellis_key_wake w on w.at <= given.now or w.since > given.now
order by w.at, w.key_hash limit ?

-- name: key_wake_done
delete from trellis_key_wake where rowid in (
  select w.rowid from (select ? as now, ? as keys) given
  cross join json_each(given.keys) k
  cross join trellis_key_wake w on w.key_hash = k.value
  where w.at <= given.now or w.since > given.now)

-- name: key_wake_plan
-- Hand the key over at this moment, unless that happens before.
insert into trellis_key_wake (key_hash, at, since)
select given.hash, given.at, given.since from (select ? as hash, ? as at, ? as since) given
where not exists (
  select 1 from trellis_key_wake w where w.key_hash = given.hash and w.at <= given.at)

-- name: key_wake_type
-- Hand over all keys of a type that have waiting jobs, at this moment.
insert into trellis_key_wake (key_hash, at, since)
select distinct q.key_hash, given.at, given.at from (select ? as at, ? as service, ? as type) given
cross join trellis_queue q
cross join trellis_lane l on l.id = q.lane and l.service = given.service and l.type = given.type
where q.key_hash is not null and q.availability = 'waiting_for_slot'
