"""Hints: a watcher learns that something may have happened; nothing depends on it."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from trellis.core.commands import Cancel
from trellis.engines.port import Engine
from trellis.engines.values import QueueSettings, Topic
from trellis.testing.builders import QUEUE, SERVICE, a_job, complete
from trellis.testing.conformance.helpers import a_session, accept_one, settle, start
from trellis.testing.conformance.suite import EngineSuite

_PATIENCE = 10


async def _next(hints: AsyncIterator[Topic]) -> Topic:
    return await anext(hints)


async def hint_after(
    engine: Engine, topics: Sequence[Topic], act: Callable[[], Awaitable[object]]
) -> Topic:
    """Repeat an action until a watcher gets a hint: the start of a watch cannot be observed."""
    hints = engine.watch(topics)
    received = asyncio.ensure_future(_next(hints))
    async with asyncio.timeout(_PATIENCE):
        while not received.done():
            await act()
            await asyncio.wait({received}, timeout=0.05)
        return received.result()


class TestHints(EngineSuite):
    """A watcher wakes up soon after something may have changed."""

    async def test_a_new_job_wakes_those_who_wait_for_work(self, engine: Engine) -> None:
        async def create() -> None:
            await accept_one(engine, a_job())

        assert await hint_after(engine, ["ready"], create) == "ready"

    async def test_a_settled_job_wakes_those_who_wait_for_results(self, engine: Engine) -> None:
        session = await a_session(engine)

        async def finish() -> None:
            taken = await start(engine, session, a_job())
            await settle(engine, taken, complete(taken))

        assert await hint_after(engine, ["settled"], finish) == "settled"

    async def test_a_reopened_queue_wakes_those_who_wait_for_work(self, engine: Engine) -> None:
        async def reopen() -> None:
            await engine.set_queue(QueueSettings(SERVICE, QUEUE))

        assert await hint_after(engine, ["ready"], reopen) == "ready"

    @pytest.mark.parametrize("force", [False, True])
    async def test_a_cancel_of_a_running_attempt_wakes_its_worker(
        self, engine: Engine, *, force: bool
    ) -> None:
        session = await a_session(engine)

        async def cancel() -> None:
            taken = await start(engine, session, a_job())
            await settle(engine, taken, Cancel(force=force))

        assert await hint_after(engine, ["asked"], cancel) == "asked"

    async def test_only_the_watched_topics_are_sent(self, engine: Engine) -> None:
        session = await a_session(engine)

        async def work() -> None:
            taken = await start(engine, session, a_job())
            await settle(engine, taken, complete(taken))

        assert await hint_after(engine, ["settled"], work) == "settled"
        assert await hint_after(engine, ["ready"], work) == "ready"

    async def test_several_watchers_all_get_the_hint(self, engine: Engine) -> None:
        watchers = [asyncio.ensure_future(_next(engine.watch(["ready"]))) for _ in range(3)]
        async with asyncio.timeout(_PATIENCE):
            while not all(each.done() for each in watchers):
                await accept_one(engine, a_job())
                await asyncio.wait(watchers, timeout=0.05)
        assert [each.result() for each in watchers] == ["ready"] * 3

    async def test_a_watcher_may_leave_at_any_time(self, engine: Engine) -> None:
        watcher = asyncio.ensure_future(_next(engine.watch(["ready"])))
        await accept_one(engine, a_job())
        watcher.cancel()
        await asyncio.wait({watcher})
        await accept_one(engine, a_job())

    async def test_closing_the_engine_ends_every_watch(self, engine: Engine) -> None:
        async def watch_to_the_end() -> None:
            async for _ in engine.watch(["ready", "settled"]):
                pass

        watcher = asyncio.ensure_future(watch_to_the_end())
        await accept_one(engine, a_job())
        await engine.close()
        async with asyncio.timeout(_PATIENCE):
            await watcher
