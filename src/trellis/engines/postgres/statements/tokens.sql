-- Tokens of the HTTP API.

-- name: token_add
insert into trellis.token (id, hash, name, scopes, created_at, expires_at, actor, reason)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (id) do nothing returning id

-- name: token_by_id
select id, hash, name, scopes, created_at, expires_at, revoked_at, actor, reason
from trellis.token where id = $1

-- name: token_list
select id, hash, name, scopes, created_at, expires_at, revoked_at, actor, reason
from trellis.token order by created_at desc, id collate "C"

-- name: token_revoke
update trellis.token set revoked_at = $1 where id = $2 and revoked_at is null

-- name: token_prune_logins
delete from trellis.token where id in (
  select id from trellis.token where expires_at <= $1 and (scopes like '["login"%' or scopes like '["session"%')
  order by expires_at, id limit $2)
