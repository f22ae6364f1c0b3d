select r.* from trellis_queue h indexed by trellis_queue_session
join trellis_record r on r.seq = h.job
where h.session is not null and h.blocked = 0
  and not exists (select 1 from trellis_session s where s.id = h.session and s.ended_at is null)
order by h.job limit ?
