update trellis.queue set seen_at = $1, look_at = $2 where job = $3
