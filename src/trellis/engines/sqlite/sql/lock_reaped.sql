delete from trellis_lock where session = ?
