-- A live job has a place in the queue; an ended one has none.
select seq, state, park is not null from trellis_record where id = ?
