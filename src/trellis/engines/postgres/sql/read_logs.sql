select g.number, g.at, g.claim, g.level, g.message, g.fields
from trellis.job j join trellis.log g on g.job = j.seq
where j.id = $1 and g.number > $2 order by g.number limit $3
