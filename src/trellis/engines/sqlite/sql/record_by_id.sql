select * from trellis_record where id = ?
