insert into trellis_log (job, at, claim, level, message, fields) values (?, ?, ?, ?, ?, ?)
