select * from trellis_record where seq = ?
