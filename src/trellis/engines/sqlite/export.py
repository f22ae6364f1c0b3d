"""Exporting the jobs of a file to another store, after it was sealed.

The seal is a row in a separate table and a trigger on every table for every kind of change. So it
also applies to programs that have the file open, to transactions of the application, and to
versions of Trellis that do not know about seals. It is set in the same transaction as the check
that no worker is active. The file stays readable, and the application's tables are not changed.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Final, TypeVar

from trellis import failpoints
from trellis.core.batches import ENDED_READERS
from trellis.core.states import LIVE
from trellis.engines.clock import Clock
from trellis.engines.sql.rows import Row, encode_ids
from trellis.engines.sqlite.connection import connect, no_fork, patiently
from trellis.engines.sqlite.errors import translate
from trellis.engines.sqlite.transaction import FRAGMENTS, STATEMENTS
from trellis.engines.transfer import Busy, ExportedHead, ExportedJob, JobBatch, Kind, Seal, fitting

T = TypeVar("T")
_TABLES: Final = (
    "job", "queue", "outcome", "event", "session", "key_slot", "note", "item", "log",
    "idempotency", "queue_setting", "drain_change", "lock", "past_session", "removal",
    "job_limit", "limit_bucket", "lingering", "key_bucket", "key_wake", "contract", "job_type",
    "audit",
    "schedule", "schedule_slot",
    "archive", "archive_queue",
    "batch", "batch_member",
    "dependency", "ended_prerequisite", "share",
)  # fmt: skip
_NO_LIMIT: Final = 2**62
#: The statement that returns rows of a kind.
_ROWS: Final[dict[Kind, str]] = {
    "audit": "export_audit",
    "batches": "export_batches",
    "slots": "export_slots",
}
#: A fan-in job in one of these states may still read the members of its batch.
_READERS: Final = json.dumps(sorted({*LIVE, *ENDED_READERS}))
_CHANGES: Final = ("insert", "update", "delete")


class SqliteExporter:
    """Exports the jobs of one file."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    async def seal_of(self) -> Seal | None:
        """Return the seal, if the file has one."""
        return await self._with_file(read_seal)

    async def seal(self, instance: str, address: str) -> Seal | Busy:
        """Refuse every change from now on; return what prevents it while workers are active."""
        return await self._with_file(lambda file: self._seal(file, instance, address))

    async def batch(
        self, after: int, limit: int, states: Sequence[str], *, whole: bool
    ) -> JobBatch:
        """Return the next jobs in these states, or their outline; none at the end."""
        return await self._with_file(
            lambda file: _batch(file, after, limit, json.dumps(states), whole=whole)
        )

    async def counts(self, states: Sequence[str], last: int | None = None) -> Mapping[str, int]:
        """Return how many jobs `batch` returns in each state."""
        until = _NO_LIMIT if last is None else last
        rows = await self._with_file(
            lambda file: _rows(file, "export_counts", until, json.dumps(states), _READERS)
        )
        return {state: number for state, number in rows}  # noqa: C416 - rows are no pairs for mypy

    async def rows(self, kind: Kind, after: int, limit: int, *of: str) -> Sequence[Row]:
        """Return the next rows of a kind."""
        return await self._with_file(lambda file: _rows(file, _ROWS[kind], *of, after, limit))

    async def finish(self) -> None:
        """Record that all jobs were exported."""
        await self._with_file(lambda file: file.execute(STATEMENTS["export_finish"]))

    async def _with_file(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Run an action on a separate connection, in a thread."""

        def work() -> T:
            with no_fork(), closing(connect(self._path, create=False)) as file:
                try:
                    return patiently(lambda: action(file))
                except sqlite3.Error as error:
                    raise translate(error, self._path) from error

        return await asyncio.to_thread(work)

    def _seal(self, file: sqlite3.Connection, instance: str, address: str) -> Seal | Busy:
        file.execute(STATEMENTS["begin"])
        with closing(_Undo(file)):
            found = read_seal(file)
            if found is not None:
                return found
            busy = Busy(
                *_rows(file, "export_busy", self._clock.boot_id(), self._clock.lease_now())[0]
            )
            if any(busy):
                return busy
            seal = Seal(secrets.token_hex(16), instance, address, is_finished=False)
            file.execute(STATEMENTS["export_seal_table"])
            file.execute(STATEMENTS["export_seal_put"], seal)
            for table, change in product(_TABLES, _CHANGES):
                file.execute(_trigger(table, change, address))
            failpoints.reach("sqlite.seal")
            file.execute(STATEMENTS["commit"])
            return seal


class _Undo:
    """Rolls back what was not committed."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file

    def close(self) -> None:
        if self._file.in_transaction:
            self._file.execute(STATEMENTS["rollback"])


def _trigger(table: str, change: str, address: str) -> str:
    text = (
        f"its jobs were moved to {address}, and nothing here can be changed any more; "
        "use that URL instead"
    ).replace("'", "''")
    return FRAGMENTS["export_trigger"].format(change=change, table=table, text=text)


def read_seal(file: sqlite3.Connection) -> Seal | None:
    """Return where the jobs of a file were moved to; None if they were not."""
    if file.execute(STATEMENTS["export_is_sealed"]).fetchone() is None:
        return None
    move, instance, address, is_finished = file.execute(STATEMENTS["export_seal"]).fetchone()
    return Seal(move, instance, address, bool(is_finished))


def _rows(file: sqlite3.Connection, name: str, *values: object) -> list[Row]:
    return file.execute(STATEMENTS[name], values).fetchall()


def _batch(
    file: sqlite3.Connection, after: int, limit: int, states: str, *, whole: bool
) -> JobBatch:
    numbers = fitting(_rows(file, "export_page", after, states, _READERS, limit))
    picked = encode_ids(numbers)
    outline = JobBatch(
        after,
        numbers[-1] if numbers else after,
        [ExportedJob(*row) for row in _rows(file, "export_jobs", picked)],
        [_head(row) for row in _rows(file, "export_heads", picked)],
        _rows(file, "export_marks", picked),
    )
    if not whole:
        return outline
    return outline._replace(
        outcomes=_rows(file, "export_outcomes", picked),
        events=_rows(file, "export_events", picked),
        notes=_rows(file, "export_notes", picked),
        items=_rows(file, "export_items", picked),
        logs=_rows(file, "export_logs", picked),
        links=_rows(file, "export_links", picked),
        members=_rows(file, "export_members", picked),
        workers=_rows(file, "export_workers", picked),
    )


def _head(row: Row) -> ExportedHead:
    head = ExportedHead(*row)
    return head._replace(
        blocked=bool(head.blocked),
        suspect=bool(head.suspect),
        dedupe_unfinished=bool(head.dedupe_unfinished) or None,
        holds=bool(head.holds),
    )
