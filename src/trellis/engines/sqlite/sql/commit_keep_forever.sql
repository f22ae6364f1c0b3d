update trellis_outcome set keep_until = null where job = ?
