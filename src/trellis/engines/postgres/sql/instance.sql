select value from trellis.meta where name = 'instance'
