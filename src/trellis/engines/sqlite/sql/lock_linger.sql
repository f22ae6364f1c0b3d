update trellis_lock set linger_until = ?, linger_boot = ?, job = ? where session = ? and token = ?
