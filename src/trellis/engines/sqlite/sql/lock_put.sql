insert or replace into trellis_lock (name, session, token, taken_at) values (?, ?, ?, ?)
