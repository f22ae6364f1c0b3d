-- Statements about the connection itself: transactions, settings, notifications.

-- name: begin
begin

-- name: commit
commit

-- name: rollback
rollback

-- fragment: setting_of_connection
set {name} = {value};

-- fragment: setting_of_transaction
-- Added to `begin` where a pooler keeps no settings of a connection.
; set local {name} = {value}

-- name: notify
select pg_notify($1::text, $2::text)

-- fragment: notify_many
-- Sent as one text without parameters, which is one round trip behind a pooler as well. A lost
-- notification costs one poll interval, so its commit does not wait for the disk.
select set_config('synchronous_commit', 'off', true)

-- fragment: notify_channel
, pg_notify('{channel}', '')

-- name: backend_pid
select pg_backend_pid()
