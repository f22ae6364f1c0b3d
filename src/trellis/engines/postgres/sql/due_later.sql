-- Delayed jobs of these lanes whose time has come, the earliest first. $4: of paused queues, too.
select d.job, d.key_hash from unnest($1::int[]) l(lane) cross join lateral (
  select q.run_at, q.job, q.key_hash from trellis.queue q
  where q.lane = l.lane and q.park = 'later' and q.run_at <= trellis.clock()
  order by q.run_at, q.job limit $2) d
where $4::bool or not exists (
  select 1 from trellis.lane n
  join trellis.queue_setting p on p.service = n.service and p.queue = n.queue
  where n.id = l.lane and p.paused)
order by d.run_at, d.job limit $3
