-- What a seal would cut off: claimed jobs, live sessions, and ended attempts whose handler may still
-- run, by their slots and locks. Bound: this boot, and the moment on its lease clock.
select
  (select count(*) from trellis_queue q where q.session is not null),
  (select count(*) from trellis_session s
   where s.ended_at is null and s.boot_id = b.boot and s.lease_until > b.moment),
  (select count(*) from trellis_key_slot k
   where k.linger_until > b.moment and k.linger_boot = b.boot)
  + (select count(*) from trellis_lock k
     where k.linger_until > b.moment and k.linger_boot = b.boot)
from (select ? as boot, ? as moment) b
