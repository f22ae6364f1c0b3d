update trellis.session set draining = true where id = $1 and ended_at is null returning 1
