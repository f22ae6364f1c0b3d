select job, seen_at from trellis.queue where job = any($1::bigint[]) and seen_at is not null
