-- Remember the queue and policy of each type, for jobs that are created from SQL.
insert into trellis.job_type as t (service, type, queue, policy)
select * from unnest($1::text[], $2::text[], $3::text[], $4::int[])
on conflict (service, type) do update set queue = excluded.queue, policy = excluded.policy
where (t.queue, t.policy) is distinct from (excluded.queue, excluded.policy)
