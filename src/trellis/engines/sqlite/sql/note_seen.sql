update trellis_queue set seen_at = ?, look_at = ? where job = ?
