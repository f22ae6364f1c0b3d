insert into trellis.event (xid, job, version, kind, state, at, attempt, session, token, data)
select (select pg_current_xact_id()::text::bigint), d.job, d.version, d.kind,
  d.state::trellis.state, d.at, d.attempt, d.session, d.token, d.data
from unnest(
  $1::bigint[], $2::int[], $3::text[], $4::text[], $5::bigint[], $6::int[], $7::bigint[],
  $8::bigint[], $9::text[]) with ordinality
  d(job, version, kind, state, at, attempt, session, token, data, place)
order by d.place
