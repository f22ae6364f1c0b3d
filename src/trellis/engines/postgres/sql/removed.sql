select id from trellis.removal where id = any($1::text[])
