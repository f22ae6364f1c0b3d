"""Old databases, made on the server: a backlog, finished jobs with their journals, dead rows."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from trellis.testing.builders import QUEUE, SERVICE, TYPE

Sql = psycopg.Connection[Any]

_LANE: Final = """
    insert into trellis.lane (service, queue, type, priority) values (%s, %s, %s, 0)
    on conflict (service, queue, type, priority) do update set priority = excluded.priority
    returning id
"""
#: Jobs of a lane, accepted long ago; %(first)s and %(last)s are their numbers.
_JOBS: Final = """
    insert into trellis.job (seq, id, lane, policy, schema_version, created_at, payload,
      traceparent)
    select n, 'OLD' || lpad(n::text, 23, '0'), %(lane)s, (select min(id) from trellis.policy), 1,
      n, '{"order":7}', '00-' || lpad(n::text, 32, '0') || '-0000000000000001-00'
    from generate_series(%(first)s::bigint, %(last)s::bigint) n
"""
_CREATED: Final = """
    insert into trellis.event (xid, job, at, version, attempt, state, kind)
    select 3, n, n, 1, 0, 'pending', 'created'
    from generate_series(%(first)s::bigint, %(last)s::bigint) n
"""
_QUEUED: Final = """
    insert into trellis.queue (job, run_at, lane, availability, state, version, attempt,
      claims, generation, crashes, blocked, suspect)
    select n, n * 125, %(lane)s, 'ready', 'pending', 1, 0, 0, 0, 0, false, false
    from generate_series(%(first)s::bigint, %(last)s::bigint) n
"""
#: Microseconds between the due times of two jobs, as in the statement above: 8,000 a second.
SPACING: Final = 125
_ENDED: Final = """
    insert into trellis.outcome (job, finished_at, run_at, started_at, keep_until, generation,
      state, version, attempt, claims, crashes, result)
    select n, n, n, n, %(keep_until)s, 0, 'completed', 3, 1, 1, 0, 'null'
    from generate_series(%(first)s::bigint, %(last)s::bigint) n
"""
_STARTED_AND_ENDED: Final = """
    insert into trellis.event (xid, job, at, session, token, version, attempt, state, kind)
    select 3, n, n, 1, n, step.version, 1, step.state::trellis.state, step.kind
    from generate_series(%(first)s::bigint, %(last)s::bigint) n
    cross join (values (2, 'active', 'started'), (3, 'completed', 'completed'))
      step(version, state, kind)
"""
_NEXT: Final = "select coalesce(max(seq), 0) + 1 from trellis.job"
_SET_NEXT: Final = """
    select setval(pg_get_serial_sequence('trellis.job', 'seq'),
      greatest(%s, (select max(seq) from trellis.job)))
"""
#: So much at once: a statement of a sensible size, whatever is asked for.
_CHUNK: Final = 500_000
#: Kept for ever, as far as these tests go.
FOR_EVER: Final = 1 << 60


def add_backlog(sql: Sql, count: int, lane: tuple[str, str, str] = (SERVICE, QUEUE, TYPE)) -> None:
    """Add jobs that can be claimed."""
    _add(sql, count, lane, (_JOBS, _CREATED, _QUEUED))


def add_finished(sql: Sql, count: int, keep_until: int = FOR_EVER) -> None:
    """Add jobs that were completed, with outcome and journal."""
    steps = (_JOBS, _CREATED, _STARTED_AND_ENDED, _ENDED)
    _add(sql, count, (SERVICE, QUEUE, TYPE), steps, keep_until)


def add_dead(sql: Sql, count: int) -> None:
    """Queue jobs that are gone again: rows that cannot be cleared away while a snapshot is held."""
    lane = _lane(sql, (SERVICE, QUEUE, TYPE))
    first = _next(sql)
    values = {"lane": lane, "first": first, "last": first + count - 1}
    sql.execute(_QUEUED, values)
    sql.execute("delete from trellis.queue where job between %(first)s and %(last)s", values)
    sql.execute(_SET_NEXT, [first + count])


def _add(
    sql: Sql, count: int, names: tuple[str, str, str], steps: tuple[str, ...], keep_until: int = 0
) -> None:
    lane, first = _lane(sql, names), _next(sql)
    end = first + count
    for start in range(first, end, _CHUNK):
        last = min(start + _CHUNK, end) - 1
        for step in steps:
            values = {"lane": lane, "first": start, "last": last, "keep_until": keep_until}
            sql.execute(step.encode(), {n: v for n, v in values.items() if f"%({n})s" in step})
    sql.execute(_SET_NEXT, [end])


def _lane(sql: Sql, names: tuple[str, str, str]) -> int:
    service, queue, job_type = names
    return _number(sql.execute(_LANE, [service, queue, job_type]).fetchone())


def _next(sql: Sql) -> int:
    last = _number(sql.execute("select last_value from trellis.job_seq_seq").fetchone())
    return max(last + 1, _number(sql.execute(_NEXT).fetchone()))


def _number(row: tuple[Any, ...] | None) -> int:
    assert row is not None
    return int(row[0])
