delete from trellis_session where id in (values (?))
