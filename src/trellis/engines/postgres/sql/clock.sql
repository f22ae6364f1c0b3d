select trellis.clock()
