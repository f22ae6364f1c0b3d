insert into trellis.lane (service, queue, type, priority)
select * from unnest($1::text[], $2::text[], $3::text[], $4::int[])
on conflict do nothing
