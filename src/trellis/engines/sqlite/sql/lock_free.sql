delete from trellis_lock where name = ? and session = ? and token = ?
