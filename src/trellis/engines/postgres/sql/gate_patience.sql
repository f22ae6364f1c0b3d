-- Whoever is in a gate may have a long way to its commit: others work on this connection, too.
select set_config('lock_timeout', '2000', true)
