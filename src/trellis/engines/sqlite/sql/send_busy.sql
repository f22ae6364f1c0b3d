-- What a seal would cut off: claimed jobs, live sessions, and ended attempts whose handler may still
-- run, with their slots and locks.
select
  (select count(*) from trellis_queue q where q.session is not null),
  (select count(*) from trellis_session s
   where s.ended_at is null and s.boot_id = ?1 and s.lease_until > ?2),
  (select count(*) from trellis_key_slot k where k.linger_until > ?2 and k.linger_boot = ?1)
  + (select count(*) from trellis_lock k where k.linger_until > ?2 and k.linger_boot = ?1)
