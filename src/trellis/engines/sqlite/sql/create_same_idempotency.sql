select j.id, j.payload
from trellis_idempotency i join trellis_job j on j.seq = i.job
where i.mark = ?
