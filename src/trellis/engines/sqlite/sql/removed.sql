select 1 from trellis_removal where id = ?
