-- Free the slots that these jobs hold for an attempt.
delete from trellis.key_slot where job = any($1::bigint[]) and linger_until is null
