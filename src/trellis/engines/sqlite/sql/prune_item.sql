delete from trellis_item where job = ?
