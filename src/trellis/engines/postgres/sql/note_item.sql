insert into trellis.item (job, name, status, detail) values ($1, $2, $3, $4)
on conflict (job, name) do update set status = excluded.status, detail = excluded.detail
