select i.job, i.mark from json_each(?) picked join trellis_idempotency i on i.job = picked.value
