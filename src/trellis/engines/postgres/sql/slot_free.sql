delete from trellis.key_slot where id = $1
