insert into trellis_idempotency (mark, job) values (?, ?)
