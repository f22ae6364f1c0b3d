select j.id
from (select min(job) as job from trellis_key_slot where key_hash = ? and linger_until is null) s
join trellis_job j on j.seq = s.job
