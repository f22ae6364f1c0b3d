-- The numbers of lanes and policies.

-- name: lane_add
insert into trellis_lane (service, queue, type, priority) values (?, ?, ?, ?)

-- name: lane_list
select id, service, queue, type, priority from trellis_lane where id > ?

-- name: policy_add
insert into trellis_policy (body) values (?)

-- name: policy_find
select id from trellis_policy where body = ?

-- name: policy_load
select body from trellis_policy where id = ?
