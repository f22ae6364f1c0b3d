-- The guard of every settlement: the version and the fence it was decided against.
delete from trellis_queue
where job in (
  select q.job
  from (values (?, ?, ?)) b
  cross join trellis_queue q
    on q.job = b.column1 and q.version = b.column2 and q.token is b.column3)
