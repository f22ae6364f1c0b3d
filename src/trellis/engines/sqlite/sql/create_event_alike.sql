insert into trellis_event (job, version, kind, state, at, attempt)
select seq, ?, ?, ?, ?, ? from trellis_job where seq > ?
