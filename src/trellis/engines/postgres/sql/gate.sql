-- Keep others from creating jobs with the same keys or marks until this transaction ends; in one
-- order, so that two who want the same never wait for each other.
select pg_advisory_xact_lock(hashtextextended('trellis/gate/' || g.name, 0))
from (select name from unnest($1::text[]) n(name) order by name offset 0) g
