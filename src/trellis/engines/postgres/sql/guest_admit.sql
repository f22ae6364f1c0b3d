-- Let keyed jobs that came in callers' transactions wait for their slots like everybody else.
update trellis.queue set park = 'slot' where job = any($1::bigint[]) and park = 'guest'
