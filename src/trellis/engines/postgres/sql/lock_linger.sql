update trellis.lock set linger_until = $1, job = $2 where session = $3 and token = $4
