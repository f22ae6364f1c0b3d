insert or replace into trellis_removal (id, state, removed_at) values (?, ?, ?)
