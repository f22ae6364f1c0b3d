select r.* from unnest($1::bigint[]) n(seq) join trellis.record r on r.seq = n.seq
