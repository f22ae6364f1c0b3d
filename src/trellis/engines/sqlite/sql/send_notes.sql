select n.job, n.claim, n.began_at, n.seen_at, n.progress, n.phase
from json_each(?) picked join trellis_note n on n.job = picked.value
