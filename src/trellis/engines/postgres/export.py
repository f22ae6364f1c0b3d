"""Exporting the jobs of a database to another store, after it was sealed.

The seal is a row of `meta` and a trigger on every table, which are added in one transaction with
the check that no worker is active. That transaction waits for those under way and holds back new
ones. So the seal also applies to programs that are connected, to transactions of the application,
and to versions of Trellis that do not know about seals. Everything can still be read.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from trellis import failpoints
from trellis.core.batches import ENDED_READERS
from trellis.core.states import LIVE
from trellis.engines.postgres.connection import ServerConnection
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql.rows import Row
from trellis.engines.transfer import (
    Busy,
    ExportedHead,
    ExportedJob,
    JobBatch,
    Kind,
    Seal,
    fitting,
)

T = TypeVar("T")
_NO_LIMIT: Final = 2**62
#: A fan-in job in one of these states may still read the members of its batch.
_READERS: Final = sorted({*LIVE, *ENDED_READERS})


class Within(Protocol):
    """Runs a verb in a separate transaction."""

    def __call__(self, verb: Callable[[Transaction], Awaitable[T]], /) -> Awaitable[T]:
        """Run it."""


class PostgresExporter:
    """Exports the jobs of one database."""

    def __init__(self, within: Within, link: ServerConnection) -> None:
        self._within, self._link = within, link

    async def seal_of(self) -> Seal | None:
        """Return the seal, if the database has one."""
        return read_seal(await self._link.value("export_seal"))

    async def seal(self, instance: str, address: str) -> Seal | Busy:
        """Refuse every change from now on; return what prevents it while workers are active."""
        return await self._within(lambda tx: _put_seal(tx, instance, address))

    async def batch(
        self, after: int, limit: int, states: Sequence[str], *, whole: bool
    ) -> JobBatch:
        """Return the next jobs in these states, or their outline; none at the end."""
        page = await self._link.rows("export_page", after, list(states), _READERS, limit)
        numbers = fitting(page)

        async def rows(name: str) -> Sequence[Row]:
            return [tuple(row) for row in await self._link.rows(f"export_{name}", numbers)]

        outline = JobBatch(
            after,
            numbers[-1] if numbers else after,
            [ExportedJob(*row) for row in await rows("jobs")],
            [ExportedHead(*row) for row in await rows("heads")],
            await rows("marks"),
        )
        if not whole:
            return outline
        return outline._replace(
            outcomes=await rows("outcomes"),
            events=await rows("events"),
            notes=await rows("notes"),
            items=await rows("items"),
            logs=await rows("logs"),
            links=await rows("links"),
            members=await rows("members"),
            workers=await rows("workers"),
        )

    async def counts(self, states: Sequence[str], last: int | None = None) -> Mapping[str, int]:
        """Return how many jobs `batch` returns in each state."""
        until = _NO_LIMIT if last is None else last
        found = await self._link.rows("export_counts", until, list(states), _READERS)
        return {state: number for state, number in found}  # noqa: C416 - rows are no pairs

    async def rows(self, kind: Kind, after: int, limit: int, *of: str) -> Sequence[Row]:
        """Return the next rows of a kind."""
        return [tuple(row) for row in await self._link.rows(f"export_{kind}", *of, after, limit)]

    async def finish(self) -> None:
        """Record that all jobs were exported."""
        seal = await self.seal_of()
        if seal is not None:
            await self._link.rows("export_finish", _text(seal._replace(is_finished=True)))


async def _put_seal(tx: Transaction, instance: str, address: str) -> Seal | Busy:
    await tx.run("export_lock")
    found = read_seal(await tx.value("export_seal"))
    if found is not None:
        return found
    busy = Busy(*(await tx.rows("export_busy"))[0])
    if any(busy):
        return busy
    seal = Seal(secrets.token_hex(16), instance, address, is_finished=False)
    await tx.run("export_refuse")
    await tx.run("export_shut")
    await tx.run("export_seal_put", _text(seal))
    failpoints.reach("postgres.seal")
    return seal


def _text(seal: Seal) -> str:
    return json.dumps(seal._asdict())


def read_seal(text: Any) -> Seal | None:  # noqa: ANN401 - a value of the database
    """Return the seal that a row of `meta` has."""
    return None if text is None else Seal(**json.loads(text))
