-- One at a time may ask for a lock of this name.
select pg_advisory_xact_lock(hashtextextended('trellis/lock/' || $1::text, 0))
