update trellis.queue set park = 'ready' where job = $1 and park = 'slot'
