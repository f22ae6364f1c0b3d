select r.* from trellis_queue h join trellis_record r on r.seq = h.job
where h.session = ? order by h.job
