insert into trellis.policy (digest, body, active, watch)
select * from unnest($1::text[], $2::text[], $3::int[], $4::bigint[])
on conflict do nothing
