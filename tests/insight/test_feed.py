"""Listening to changes: in order, filtered, resumed anywhere, through outages; losses raise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis import ConfigurationError, CursorExpired, CursorInvalid, JobChange, Operator, Service
from trellis.engines.feed import Changes, Expired
from trellis.engines.memory import MemoryEngine
from trellis.errors import EngineClosed, EngineError, EngineUnavailable
from trellis.testing import ManualClock, sandbox
from trellis.testing.builders import a_job, complete
from trellis.testing.conformance.helpers import a_session, accept, accept_one, settle, start

ENOUGH = 20.0


class Interrupted(MemoryEngine):
    """Cannot be reached while `outage` is set."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.outage: EngineError | None = None
        self.refused = asyncio.Event()
        self.looks = 0
        self.looked = asyncio.Event()

    async def changes(self, after: str | None = None, limit: int = 1000) -> Changes | Expired:
        self.looks += 1
        self.looked.set()
        if self.outage is not None:
            self.refused.set()
            raise self.outage
        return await super().changes(after, limit)


@pytest.fixture
async def engine() -> AsyncIterator[Interrupted]:
    engine = Interrupted()
    await engine.open()
    yield engine
    await engine.close()


async def take(
    engine: MemoryEngine, count: int, after: str | None = None, **filters: str
) -> list[JobChange]:
    """Read so many changes."""
    found = []
    async with asyncio.timeout(ENOUGH):
        feed = Operator(engine).changes(after, **filters)
        async with aclosing(feed) as changes:
            async for change in changes:
                found.append(change)
                if len(found) == count:
                    break
    return found


async def test_a_change_says_what_happened_to_which_job(engine: Interrupted) -> None:
    new = a_job(tags=(("tenant", "acme"),))
    taken = await start(engine, await a_session(engine), new)
    await settle(engine, taken, complete(taken))
    created, started, completed = await take(engine, 3)
    assert {each.job_id for each in (created, started, completed)} == {new.id}
    assert (created.name, created.queue, created.tags) == (
        "shop/invoice",
        "invoices",
        {"tenant": "acme"},
    )
    assert [each.event.kind for each in (created, started, completed)] == [
        "created",
        "started",
        "completed",
    ]
    assert [each.event.version for each in (created, started, completed)] == [1, 2, 3]


async def test_changes_are_filtered(engine: Interrupted) -> None:
    await accept(engine, a_job(), a_job(type="refund"), a_job(service="mail", type="refund"))
    taken = await start(engine, await a_session(engine), a_job(type="report"))
    await settle(engine, taken, complete(taken))
    assert [each.name for each in await take(engine, 2, type="refund")] == [
        "shop/refund",
        "mail/refund",
    ]
    assert [each.name for each in await take(engine, 1, type="mail/refund")] == ["mail/refund"]
    assert [each.name for each in await take(engine, 1, service="mail")] == ["mail/refund"]
    assert [each.event.kind for each in await take(engine, 1, state="ended")] == ["completed"]
    assert [each.name for each in await take(engine, 1, kind="started")] == ["shop/report"]


async def test_a_wrong_filter_is_refused_at_once(engine: Interrupted) -> None:
    jobs = Operator(engine)
    with pytest.raises(ConfigurationError, match="Did you mean completed"):
        jobs.changes(kind="complete")
    with pytest.raises(ConfigurationError, match="not a state"):
        jobs.changes(state="done")
    with pytest.raises(ConfigurationError, match="not a filter of changes"):
        jobs.changes(queue="x")  # type: ignore[call-arg]
    with pytest.raises(CursorInvalid, match="is not a cursor"):
        await take(engine, 1, "yesterday")


async def test_a_listener_gets_what_happens_later(engine: Interrupted) -> None:
    await accept_one(engine, a_job())
    listener = asyncio.create_task(take(engine, 1, "now"))
    await engine.looked.wait()
    new = a_job()
    await accept_one(engine, new)
    assert [each.job_id for each in await listener] == [new.id]


async def test_a_listener_goes_on_after_an_outage(engine: Interrupted) -> None:
    first, second = a_job(), a_job()
    await accept_one(engine, first)
    async with asyncio.timeout(ENOUGH), aclosing(Operator(engine).changes()) as changes:
        assert (await anext(changes)).job_id == first.id
        engine.outage = EngineUnavailable("away")
        following = asyncio.ensure_future(anext(changes))
        await engine.refused.wait()
        engine.outage = None
        await accept_one(engine, second)
        assert (await following).job_id == second.id


async def test_a_closed_engine_ends_it(engine: Interrupted) -> None:
    engine.outage = EngineClosed("closed")
    with pytest.raises(EngineClosed):
        await take(engine, 1)


async def test_the_cursor_moves_over_changes_that_do_not_match(engine: Interrupted) -> None:
    await accept(engine, *[a_job() for _ in range(5)])
    changes = Operator(engine).changes(type="refund")
    following = asyncio.ensure_future(anext(changes))
    async with asyncio.timeout(ENOUGH):
        while engine.looks < 2:
            engine.looked.clear()
            await engine.looked.wait()
    assert changes.cursor == "m0.5"
    await accept_one(engine, a_job(type="refund"))
    assert (await following).cursor == "m0.6"
    await changes.aclose()


async def test_lost_changes_are_an_error_that_can_be_accepted(engine: Interrupted) -> None:
    first, gone = a_job(), a_job(type="refund")
    await accept_one(engine, first)
    taken = await start(engine, await a_session(engine), gone)
    await settle(engine, taken, complete(taken))
    (seen,) = await take(engine, 1)
    await engine.remove([gone.id])
    with pytest.raises(CursorExpired, match="Jobs were removed") as lost:
        await take(engine, 1, seen.cursor)
    assert lost.value.until is not None
    later = a_job()
    await accept_one(engine, later)
    assert [each.job_id for each in await take(engine, 1, lost.value.cursor)] == [later.id]
    with pytest.raises(CursorExpired, match="a backup was restored") as ahead:
        await take(engine, 1, "m0.999")
    assert ahead.value.until is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(1, 5), min_size=1))
def test_random_stops_and_resumes_yield_every_event_once(
    batches: list[int], reads: list[int]
) -> None:
    async def run() -> None:
        engine = MemoryEngine(ManualClock())
        await engine.open()
        for size in batches:
            await accept(engine, *[a_job() for _ in range(size)])
        expected = [each.cursor for each in await take(engine, sum(batches))] if batches else []
        seen: list[str] = []
        while len(seen) < sum(batches):
            for count in reads:
                left = sum(batches) - len(seen)
                if left:
                    after = seen[-1] if seen else None
                    seen += [each.cursor for each in await take(engine, min(count, left), after)]
        assert seen == expected[: sum(batches)]
        await engine.close()

    if sum(batches):
        asyncio.run(run())


def test_a_program_without_an_event_loop_can_listen() -> None:
    app = Service("shop")

    @app.job
    def bill(order: int) -> int:
        return order

    with sandbox() as box:
        bill.create_sync(1)
        box.run_all_sync()
        changes = app.changes_sync()
        found = [next(changes) for _ in range(3)]
        assert [each.event.kind for each in found] == ["created", "started", "completed"]
        assert next(app.changes_sync(found[0].cursor)).event.kind == "started"
