delete from trellis.lock where name = $1 and session = $2 and token = $3 returning 1
