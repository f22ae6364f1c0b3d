-- End a session whose lease is over; one that was renewed at the last moment lives on.
update trellis.session set ended_at = $2
where id = $1 and ended_at is null and lease_until <= $2 returning 1
