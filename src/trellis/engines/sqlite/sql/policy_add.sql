insert into trellis_policy (body) values (?)
