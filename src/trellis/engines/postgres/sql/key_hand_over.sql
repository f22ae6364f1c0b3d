-- Give free slots of these keys to their waiting jobs, in creation order; the caller has the keys'
-- locks. A job gets one if fewer are taken, counting those before it, than its own policy allows.
with next as materialized (
  select k.key_hash, w.job
  from (select distinct key_hash from unnest($1::text[]) n(key_hash)) k
  cross join lateral (
    select count(*) as held from trellis.key_slot s where s.key_hash = k.key_hash) h
  cross join lateral (
    select f.job from (
      select x.job, bool_and(h.held + x.place - 1 < x.active) over (order by x.job) as fits
      from (
        select q.job, p.active, row_number() over (order by q.job) as place
        from (select job from trellis.queue
              where key_hash = k.key_hash and park in ('slot', 'guest') order by job limit 100) q
        join trellis.job j on j.seq = q.job
        join trellis.policy p on p.id = j.policy) x) f
    where f.fits) w),
-- Asked again where it is changed: one that was waited for may be gone, or have its slot by now.
moved as (
  update trellis.queue q set park = 'ready' from next n
  where q.job = n.job and q.park in ('slot', 'guest')
  returning q.job, q.key_hash),
taken as (
  insert into trellis.key_slot (key_hash, job) select key_hash, job from moved order by job)
select count(*) from moved
