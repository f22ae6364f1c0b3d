select 1 where exists (select 1 from trellis_queue where lane = ? and park = 'ready')
