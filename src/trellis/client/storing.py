"""The way of new jobs into the engine: on its own connection, or in the caller's transaction.

What joins a transaction runs in the caller's thread, on the caller's connection; everything else
runs where the engine is. Both ways give the same answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import isawaitable
from typing import Any, Final

from trellis.client.connection import Connection
from trellis.client.sending import send
from trellis.client.transactions import create_within, is_open, refuse_while_open
from trellis.core.job import NewJob
from trellis.engines.port import Engine
from trellis.engines.values import CreateResult, Rejected
from trellis.errors import EngineError, TransactionRefused
from trellis.portal import call

_PAGE: Final = 1000


async def store_one(connection: Connection, new: NewJob, tx: object) -> CreateResult:
    """Store one job; together with others that are created now, unless it has a `tx`."""
    if tx is None:
        return await _store_one(connection, new)
    return (await store(connection, [new], tx))[0]


def store_one_sync(connection: Connection, new: NewJob, tx: object) -> CreateResult:
    """`store_one`, for code without an event loop."""
    return call(_store_one, connection, new) if tx is None else store_sync(connection, [new], tx)[0]


async def store(connection: Connection, jobs: Sequence[NewJob], tx: object) -> list[CreateResult]:
    """Store these jobs; with `tx`, in the caller's transaction."""
    if tx is None:
        return await _store(connection, jobs)
    results = create_within(await _engine_for(connection, ready=is_open(tx)), tx, jobs)
    return results if isinstance(results, list) else await results


def store_sync(connection: Connection, jobs: Sequence[NewJob], tx: object) -> list[CreateResult]:
    """`store`, for code without an event loop; only `tx` keeps it out of the portal."""
    if tx is None:
        return call(_store, connection, jobs)
    results = create_within(call(_engine_for, connection, ready=is_open(tx)), tx, jobs)
    if isinstance(results, list):
        return results
    _give_up(results)
    raise TransactionRefused(
        f"{type(tx).__name__} belongs to an event loop, so its transaction can only be joined "
        "there. Write: await create(..., tx=...)"
    )


async def _store_one(connection: Connection, new: NewJob) -> CreateResult:
    outbox = await connection.outbox()
    await refuse_while_open(outbox.engine)
    return await outbox.send(new)


async def _store(connection: Connection, jobs: Sequence[NewJob]) -> list[CreateResult]:
    engine = await connection.engine()
    await refuse_while_open(engine)
    results: list[CreateResult] = []
    for start in range(0, len(jobs), _PAGE):
        try:
            results += await send(engine, jobs[start : start + _PAGE])
        except EngineError as error:
            if results:
                error.add_note(how_many(results, len(jobs)))
            raise
    return results


async def _engine_for(connection: Connection, *, ready: bool) -> Engine:
    """Return an engine that can join; unless a transaction is under way, its tables are made."""
    if not ready:
        await connection.engine()
    return connection.make()


def how_many(results: Sequence[CreateResult], total: int) -> str:
    """Say how many of the jobs are stored."""
    accepted = sum(not isinstance(each, Rejected) for each in results)
    return f"{accepted} of {total} jobs were accepted."


def _give_up(results: Any) -> None:  # noqa: ANN401 - a coroutine, or what drivers use instead
    if isawaitable(results) and hasattr(results, "close"):
        results.close()
