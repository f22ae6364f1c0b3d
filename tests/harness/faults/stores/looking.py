"""The questions about a database, in SQL that SQLite and PostgreSQL both understand.

A name like `{event}` stands for a table: `trellis_event` here, `trellis.event` there. While a
server is away there is no answer (None); then what was last seen counts, and nothing is over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

Rows: TypeAlias = Sequence[Sequence[Any]]

TABLES: Final = (
    "batch", "batch_member", "dependency", "ended_prerequisite", "event", "job", "key_slot",
    "lingering", "lock", "outcome", "queue", "record", "removal", "schedule_slot", "session",
)  # fmt: skip


#: What the flow campaign reads of each table.
FLOW: Final = {
    "record": (
        "select r.seq, r.id, r.type, r.state, r.created_at, r.key, r.relations, o.result "
        "from {record} r "
        "left join {outcome} o on o.job = r.seq and o.generation = r.generation"
    ),
    "batch": (
        "select seq, id, parent, on_failure, sealed_at, cancelled_at, stopping_at, finished_at, "
        "fan_in from {batch}"
    ),
    "batch_member": "select batch, job, finished_at from {batch_member}",
    "schedule_slot": "select slot, through, outcome, job from {schedule_slot}",
    "event": "select job, kind, at, session, token from {event}",
    "queue": "select job from {queue}",
    "key_slot": "select job from {key_slot}",
    "lingering": "select job from {lingering}",
    "lock": "select name, session from {lock}",
    "ended_prerequisite": "select job from {ended_prerequisite}",
    "dependency": "select job, prerequisite from {dependency} where ended is null",
    "session": "select id, pid from {session} where ended_at is null",
}


def named(query: str, prefix: str, *numbers: int) -> str:
    """Put numbers and the names of the tables into a query."""
    return query.format(*numbers, **{table: f"{prefix}{table}" for table in TABLES})


class Looking(ABC):
    """A look at the database under test."""

    def __init__(self) -> None:
        self._sessions: dict[int, int] = {}
        self._jobs = self._ready = 0

    @abstractmethod
    def _ask(self, query: str, *numbers: int) -> Rows | None:
        """Return the rows; none before there are tables, None while nobody answers."""

    def tend(self) -> None:  # noqa: B027 - nothing to do is right for tables
        """Do nothing: a store with tables has no processes but its server."""

    def finish(self) -> None:  # noqa: B027
        """Do nothing: the tables are all there is."""

    def sessions(self) -> dict[int, int]:
        """Return the sessions that have not ended, with their processes."""
        rows = self._ask("select id, pid from {session} where ended_at is null")
        if rows is not None:
            self._sessions = {session: pid for session, pid in rows}  # noqa: C416 - says what they are
        return self._sessions

    def is_over(self, session: int) -> bool:
        """Tell whether a session was ended and nothing is held in its name any more."""
        rows = self._ask(
            "select 1 from {session} s where s.id = {0:d} and (s.ended_at is null "
            "or exists (select 1 from {queue} q where q.session = s.id))",
            session,
        )
        return rows is not None and not rows

    def refusals(self, session: int) -> int:
        """Count the late results of a session that were refused."""
        rows = self._ask(
            "select count(*) from {event} "
            "where kind = 'staleCompletionIgnored' and session = {0:d}",
            session,
        )
        return int(rows[0][0]) if rows else 0

    def jobs(self) -> int:
        """Count the jobs."""
        rows = self._ask("select count(*) from {job}")
        self._jobs = rows[0][0] if rows else self._jobs
        return self._jobs

    def ready(self) -> int:
        """Count the jobs that wait for a worker."""
        rows = self._ask("select count(*) from {queue} where availability = 'ready'")
        self._ready = rows[0][0] if rows else self._ready
        return self._ready

    def latest_slot(self) -> int:
        """Return the last slot of a schedule that was decided; 0 if none was."""
        rows = self._ask("select max(slot) from {schedule_slot}")
        return int(rows[0][0] or 0) if rows else 0

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return all rows that the flow campaign judges, by table."""
        found: dict[str, list[dict[str, Any]]] = {}
        for table, query in FLOW.items():
            columns, *_ = query.removeprefix("select ").partition(" from ")
            names = [column.rpartition(".")[2].strip() for column in columns.split(",")]
            rows = self._ask(query)
            if rows is None:
                raise RuntimeError("The server does not answer.")
            found[table] = [dict(zip(names, row, strict=True)) for row in rows]
        return found

    def unfinished(self) -> int:
        """Count the jobs that wait or run, and the slots that are taken."""
        rows = self._ask(
            "select (select count(*) from {queue}) + (select count(*) from {key_slot})"
        )
        if rows is None:
            return 1  # who knows
        return int(rows[0][0]) if rows else 0
