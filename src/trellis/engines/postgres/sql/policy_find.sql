select p.digest, p.id from unnest($1::text[]) n(digest) join trellis.policy p on p.digest = n.digest
