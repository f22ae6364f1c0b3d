delete from trellis_note where job in (values (?))
