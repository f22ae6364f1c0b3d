insert into trellis.removal (id, state, removed_at)
select id, state, $3 from unnest($1::text[], $2::text[]) n(id, state)
on conflict (id) do update set state = excluded.state, removed_at = excluded.removed_at
