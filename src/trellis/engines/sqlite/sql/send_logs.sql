select g.job, g.at, g.claim, g.level, g.message, g.fields
from json_each(?) picked join trellis_log g on g.job = picked.value order by g.number
