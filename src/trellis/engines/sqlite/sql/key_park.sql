update trellis_queue set park = ? where job = ?
