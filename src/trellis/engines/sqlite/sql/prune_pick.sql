select o.job, j.id, o.state from trellis_outcome o join trellis_job j on j.seq = o.job
where o.keep_until is not null and o.keep_until <= ? order by o.keep_until, o.job limit ?
