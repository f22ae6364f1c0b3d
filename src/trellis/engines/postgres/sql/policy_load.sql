select p.id, p.body from unnest($1::int[]) n(id) join trellis.policy p on p.id = n.id
