"""Importing the jobs of another store into a SQLite file; see `sql/import_jobs.py`."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from trellis.core.audit import By, Change
from trellis.core.job import JobId
from trellis.core.policy import Policy
from trellis.engines.sql import import_jobs
from trellis.engines.sql.rows import Lane, Row
from trellis.engines.sql.transaction import run_through
from trellis.engines.sqlite.transaction import SharedTransaction, Transaction
from trellis.engines.transfer import Compared, JobBatch, Kind

T = TypeVar("T")
_KEYS: Final = 200


class Write(Protocol):
    """Runs a verb on the writer thread."""

    def __call__(self, verb: Callable[[Transaction], T], /) -> Awaitable[T]:
        """Run it."""


class SqliteImporter:
    """Imports jobs into one file."""

    is_thorough = False

    def __init__(self, write: Write) -> None:
        self._write = write

    async def instance(self) -> str:
        """Return the identity of this file."""

        def identify(tx: Transaction) -> str:
            tx.run("import_identify", secrets.randbits(62))
            (instance,) = tx.one("import_instance") or (0,)
            return f"sqlite {instance}"

        return await self._write(identify)

    async def sealed_for(self) -> str | None:
        """Return where the jobs of this file were moved to; None: it takes jobs."""

        def read(tx: Transaction) -> str | None:
            if tx.one("export_is_sealed") is None:
                return None
            _, _, address, _ = tx.one("export_seal") or (None,) * 4
            return address

        return await self._write(read)

    async def cursor(self, move: str) -> int:
        """Return the number of the last job that was imported; 0 before the first."""
        return await self._run(lambda tx, _: import_jobs.cursor(tx, move))

    async def compare(self, batch: JobBatch) -> Compared:
        """Return which jobs are here already, and which cannot be imported."""
        return await self._run(lambda tx, _: import_jobs.compare(tx, batch))

    async def known(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        """Return which of these jobs are here, or were here and were removed."""
        return await self._run(lambda tx, _: import_jobs.known(tx, ids))

    async def import_batch(self, move: str, batch: JobBatch) -> int:
        """Store a batch together with the progress of the move; return how many jobs were new."""

        async def work(tx: SharedTransaction, target: _Target) -> int:
            await import_jobs.begin(tx, move)
            return await import_jobs.import_batch(tx, target, move, batch)

        return await self._run(work)

    async def import_rows(self, kind: Kind, move: str, after: int, rows: Sequence[Row]) -> None:
        """Store rows of a kind together with the progress of the move."""

        async def work(tx: SharedTransaction, target: _Target) -> None:
            await import_jobs.begin(tx, move)
            await import_jobs.import_rows(tx, target, move, after, kind=kind, rows=rows)

        await self._run(work)

    async def record(self, move: str, change: Change, by: By) -> None:
        """Store an entry of the audit about this move, once."""

        async def work(tx: SharedTransaction, _: _Target) -> None:
            await import_jobs.begin(tx, move)
            await import_jobs.record(tx, move, change, by)

        await self._run(work)

    async def assign_slots(self) -> None:
        """Give the free slots of all keys to their waiting jobs."""
        after = ""
        while True:
            keys = await self._write(partial(_keys, after=after))
            if not keys:
                return
            await self._write(partial(_assign_slots, keys=keys))
            after = keys[-1]

    async def _run(self, verb: Callable[[SharedTransaction, _Target], Coroutine[Any, Any, T]]) -> T:
        return await self._write(lambda tx: run_through(verb(tx.shared, _Target(tx))))


def _keys(tx: Transaction, after: str) -> list[str]:
    return [key for (key,) in tx.rows("import_keys", after, _KEYS)]


def _assign_slots(tx: Transaction, keys: Sequence[str]) -> None:
    run_through(import_jobs.assign_slots(tx.shared, keys))


class _Target:
    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    def lane(self, lane: Lane) -> int:
        return self._tx.registry.lane_number(self._tx, lane)

    def policy(self, policy: Policy) -> int:
        return self._tx.registry.policy_number(self._tx, policy)

    async def add_jobs(self, rows: Sequence[Row]) -> Mapping[str, int]:
        first = (self._tx.one("create_counter") or (0,))[0] + 1
        self._tx.run_many("import_jobs", [(first + n, *row) for n, row in enumerate(rows)])
        self._tx.run("create_counter_set", first + len(rows) - 1)
        return {row[0]: first + n for n, row in enumerate(rows)}

    def clean(self, value: object) -> object:
        return value
