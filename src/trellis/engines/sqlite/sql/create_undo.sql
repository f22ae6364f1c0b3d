-- Only jobs of this call: by their ids, and not the earlier one that has an id of them.
delete from trellis_job where seq > ? and id in (select value from json_each(?))
