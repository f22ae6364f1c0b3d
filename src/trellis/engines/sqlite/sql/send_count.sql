select count(*) from trellis_record r
where r.seq <= ? and r.state in (select value from json_each(?))
