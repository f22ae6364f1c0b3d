insert into trellis_key_slot (key_hash, job) values (?, ?)
