delete from trellis_event where job in (values (?))
