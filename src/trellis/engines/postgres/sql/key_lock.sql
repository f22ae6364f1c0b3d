-- Be the only one who moves the slots of these keys until this transaction ends. Taken before any
-- row of a keyed job is locked, in one order.
select pg_advisory_xact_lock(hashtextextended('trellis/key/' || g.name, 0))
from (select name from unnest($1::text[]) n(name) order by name offset 0) g
