-- `claim` while there is no lane to claim from: only the flags. $1 session, $2 known lanes, $3 flags done.
select trellis.clock(), ~$3::int & (
    case when exists (select 1 from trellis.session o where o.id = $1 and o.ended_at is null)
         then 0 else 1 end
    + case when (select count(*) from trellis.lane) <> $2::int then 8 else 0 end), null::bigint
