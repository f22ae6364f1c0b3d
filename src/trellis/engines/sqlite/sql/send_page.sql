select r.seq, length(r.payload) from trellis_record r
where r.seq > ? and r.state in (select value from json_each(?)) order by r.seq limit ?
