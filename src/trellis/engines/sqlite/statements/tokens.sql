-- Tokens of the HTTP API.

-- name: token_add
insert or ignore into trellis_token
  (id, hash, name, scopes, created_at, expires_at, actor, reason)
values (?, ?, ?, ?, ?, ?, ?, ?)

-- name: token_by_id
select id, hash, name, scopes, created_at, expires_at, revoked_at, actor, reason
from trellis_token where id = ?

-- name: token_list
select id, hash, name, scopes, created_at, expires_at, revoked_at, actor, reason
from trellis_token order by created_at desc, id

-- name: token_revoke
update trellis_token set revoked_at = ? where id = ? and revoked_at is null

-- name: token_prune_logins
delete from trellis_token where id in (
  select id from trellis_token where expires_at <= ? and (scopes like '["login"%' or scopes like '["session"%')
  order by expires_at, id limit ?)

-- name: token_prune_logins_peek
select 1 from trellis_token where expires_at <= ? and (scopes like '["login"%' or scopes like '["session"%') limit 1
