select name, value from trellis_meta where name = 'schema'
