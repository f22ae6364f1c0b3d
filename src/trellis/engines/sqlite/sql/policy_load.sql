select body from trellis_policy where id = ?
