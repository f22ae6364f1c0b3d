update trellis_queue
set park = 'taken', state = 'active', version = version + 1, attempt = attempt + 1,
    claims = claims + 1, token = b.column2, session = ?, claimed_at = ?,
    dedupe = null, seen_at = null, look_at = null
from (values (?, ?)) b
where trellis_queue.job = b.column1
