select job, key_hash from trellis.queue where park = 'guest' order by job limit $1
