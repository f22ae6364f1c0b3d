delete from trellis_item where job in (values (?))
