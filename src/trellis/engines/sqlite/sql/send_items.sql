select i.job, i.name, i.status, i.detail
from json_each(?) picked join trellis_item i on i.job = picked.value
