update trellis_queue
set park = ?, state = ?, version = ?, generation = ?, attempt = ?, claims = ?, crashes = ?,
    run_at = ?, session = ?, token = ?, claimed_at = ?, asked_at = ?, blocked = ?, suspect = ?,
    error = ?, dedupe = null, look_at = ?
where job = ? and version = ? and token is ?
