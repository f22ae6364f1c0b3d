-- Keys somebody waits for, in order, after this one.
select distinct q.key_hash from trellis.queue q
where q.key_hash is not null and q.key_hash > $1 and q.park = 'slot' order by q.key_hash limit $2
