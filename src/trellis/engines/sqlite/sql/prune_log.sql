delete from trellis_log where job in (values (?))
