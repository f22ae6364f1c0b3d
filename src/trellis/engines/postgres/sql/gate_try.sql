-- `gate` without waiting: false if somebody else is in it.
select coalesce(bool_and(pg_try_advisory_xact_lock(hashtextextended('trellis/gate/' || g.name, 0))), true)
from (select name from unnest($1::text[]) n(name) order by name offset 0) g
