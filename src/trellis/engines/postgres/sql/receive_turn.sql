-- How far the move is; whoever else carries the same move waits here.
select value::bigint from trellis.meta where name = $1 for update
