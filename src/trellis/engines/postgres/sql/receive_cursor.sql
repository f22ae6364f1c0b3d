select value::bigint from trellis.meta where name = $1
