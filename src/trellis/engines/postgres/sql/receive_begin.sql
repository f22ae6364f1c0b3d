insert into trellis.meta (name, value) values ($1, '0') on conflict (name) do nothing
