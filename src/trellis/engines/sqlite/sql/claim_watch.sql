update trellis_queue set look_at = ? where job = ?
