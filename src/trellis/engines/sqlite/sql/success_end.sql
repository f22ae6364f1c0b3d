delete from trellis_queue where job in (select value from json_each(?))
