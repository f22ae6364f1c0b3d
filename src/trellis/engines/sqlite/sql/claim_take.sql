-- The token of a claim: one random start for the list, and the number of the job.
update trellis_queue
set park = 'taken', state = 'active', version = version + 1, attempt = attempt + 1,
    claims = claims + 1, token = ? + job, session = ?, claimed_at = ?,
    dedupe = null, seen_at = null, look_at = null
where job in (select value from json_each(?))
