update trellis.queue set park = $1::text::trellis.park where job = $2
