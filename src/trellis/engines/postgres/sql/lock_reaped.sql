delete from trellis.lock where session = $1
