update trellis.meta set value = $2::bigint::text where name = $1
