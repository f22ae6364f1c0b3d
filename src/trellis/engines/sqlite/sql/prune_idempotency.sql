delete from trellis_idempotency where job in (values (?))
