-- Let a job hold a slot of its key, if one is free by its own policy; the caller has the key's lock.
insert into trellis.key_slot (key_hash, job)
select j.key_hash, j.seq from trellis.job j join trellis.policy p on p.id = j.policy
where j.seq = $1
  and (select count(*) from trellis.key_slot s where s.key_hash = j.key_hash) < p.active
returning job
