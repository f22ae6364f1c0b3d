update trellis.note n set began_at = d.at
from unnest($1::bigint[], $2::bigint[]) d(job, at) where n.job = d.job
