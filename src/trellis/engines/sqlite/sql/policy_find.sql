select id from trellis_policy where body = ?
