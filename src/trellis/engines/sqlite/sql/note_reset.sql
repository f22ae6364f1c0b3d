insert or replace into trellis_note (job, claim, seen_at) values (?, ?, ?)
