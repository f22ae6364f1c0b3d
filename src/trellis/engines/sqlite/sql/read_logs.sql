select g.number, g.at, g.claim, g.level, g.message, g.fields
from trellis_job j join trellis_log g on g.job = j.seq
where j.id = ? and g.number > ? order by g.number limit ?
