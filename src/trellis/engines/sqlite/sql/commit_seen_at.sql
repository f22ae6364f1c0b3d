select seen_at from trellis_queue where job = ?
