delete from trellis_outcome where job in (values (?))
