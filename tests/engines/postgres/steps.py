"""Short ways to what the tests of this folder do again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg

from tests.harness.servers.databases import Databases
from trellis.core.job import JobId
from trellis.engines.postgres import PostgresEngine
from trellis.errors import EngineError

T = TypeVar("T")
PATIENCE = 30.0
_WAITS = """
    select from pg_stat_activity
    where wait_event_type = 'Lock' and datname = current_database()
"""
#: Brings every ended job back.
REVIVE = """
    update trellis.outcome set keep_until = null;
    insert into trellis.queue (job, run_at, lane, availability, state, version, attempt,
        claims, generation, crashes, blocked, suspect)
      select job, run_at, 1, 'ready', 'pending', version + 1, 0, claims, generation + 1, 0,
        false, false from trellis.outcome
"""


def migrate(url: str) -> None:
    """Make our tables."""
    asyncio.run(PostgresEngine(url).migrate())


def fresh(server: Databases) -> str:
    """Return a new database with our tables."""
    return server.new_database(server.template("migrated", migrate))


def with_options(url: str, **options: str) -> str:
    """Return the URL with options of ours."""
    joined = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{url}{'&' if '?' in url else '?'}{joined}"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresEngine]:
    """Have an engine for a while."""
    engine = PostgresEngine(url)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


async def until_it_works(action: Callable[[], Awaitable[T]]) -> T:
    """Try again and again while the engine is away."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await action()
            except EngineError:
                await asyncio.sleep(0.05)


async def state_of(engine: PostgresEngine, job_id: JobId) -> str | None:
    """Return a job's state; None if there is no such job."""
    (record,) = (await engine.load([job_id])).records
    return None if record is None else record.head.state.value


def waits(url: str) -> bool:
    """Tell whether somebody in this database waits for a lock."""
    return count_waiting(url) > 0


def count_waiting(url: str) -> int:
    """Return how many connections to this database wait for a lock."""
    with psycopg.connect(url, autocommit=True) as looking:
        return len(looking.execute(_WAITS).fetchall())


async def begun(url: str, call: Coroutine[Any, Any, T], waiting: int) -> asyncio.Task[T]:
    """Begin a call; return when it has ended, or so many connections wait for a lock."""
    task = asyncio.create_task(call)
    async with asyncio.timeout(PATIENCE):
        while not task.done() and count_waiting(url) < waiting:  # noqa: ASYNC110 - only the server knows
            await asyncio.sleep(0)
    return task


async def during(url: str, change: str, call: Coroutine[Any, Any, T]) -> T:
    """Await a call that has to wait for somebody who is in the middle of a change."""
    with psycopg.connect(url) as other:
        other.execute(change.encode())
        waiting = asyncio.create_task(call)
        async with asyncio.timeout(PATIENCE):
            while not waits(url):  # noqa: ASYNC110 - only the server knows
                await asyncio.sleep(0)
        other.commit()
        return await waiting
