update trellis.key_slot set linger_until = $1 where id = $2
