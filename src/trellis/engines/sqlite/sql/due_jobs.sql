select r.* from trellis_queue d join trellis_record r on r.seq = d.job
where d.look_at is not null and d.look_at <= ?
order by d.look_at, d.job limit ?
