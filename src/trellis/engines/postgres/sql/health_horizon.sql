-- Who keeps rows that are gone from being cleared away, for more than $1 seconds or $2 transactions.
select kind, name, who, seconds, transactions from (
  select 'session' as kind, a.pid::text as name,
    format('%s, %s, user %s', coalesce(nullif(a.application_name, ''), 'no application_name'),
      coalesce(a.state, a.backend_type), coalesce(a.usename, '-')) as who,
    extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds,
    greatest(age(a.backend_xmin), age(a.backend_xid)) as transactions
  from pg_stat_activity a
  where a.pid <> pg_backend_pid() and a.backend_type <> 'autovacuum worker'
    and (a.datname = current_database() or a.datname is null)
    and (a.backend_xmin is not null or a.backend_xid is not null)
  union all
  select 'prepared', p.gid, 'user ' || p.owner,
    extract(epoch from clock_timestamp() - p.prepared)::float8, age(p.transaction)
  from pg_prepared_xacts p where p.database = current_database()
  union all
  select 'slot', s.slot_name::text, case when s.active then 'in use' else 'not in use' end, null,
    age(s.xmin)
  from pg_replication_slots s where s.xmin is not null) h
where seconds > $1::float8 or transactions > $2::int
order by transactions desc nulls last limit 5
