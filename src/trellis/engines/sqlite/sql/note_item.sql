insert or replace into trellis_item (job, name, status, detail) values (?, ?, ?, ?)
