select r.* from unnest($1::text[]) with ordinality n(id, place)
join trellis.record r on r.id = n.id order by n.place
