select n.job, n.claim, n.began_at, n.seen_at, n.progress, n.phase
from trellis.record r join trellis.note n on n.job = r.seq and n.claim = r.claims
where r.id = $1
