"""A server names at most 1,024 subjects at once: more jobs may run, and more keys be known."""

from __future__ import annotations

from tests.engines.jetstream.manual import ManualEngine
from trellis.core.durations import SECOND
from trellis.core.policy import KeyPolicy
from trellis.core.states import State
from trellis.testing import ManualClock
from trellis.testing.builders import TYPE, a_job, a_keyed_job, complete, fence_of
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    claim,
    give_up_lost,
    ids,
    reap_lapsed,
    settle,
    start,
)

COUNT = 1_100
PAGE = 100
ONE = KeyPolicy("user/{id}", 1, None, "wait")


async def test_all_jobs_of_a_dead_worker_are_taken_over(
    engine: ManualEngine, clock: ManualClock
) -> None:
    for _ in range(0, COUNT, PAGE):
        await accept(engine, *(a_job() for _ in range(PAGE)))
    session = await a_session(engine, "30s")
    running: list[str] = []
    while len(running) < COUNT:
        running += ids(await claim(engine, session, limit=PAGE))
    clock.advance("31s")
    assert await reap_lapsed(engine) == [session]
    lost: list[str] = []
    while given_up := await give_up_lost(engine):
        assert {each.head.state for each in given_up} == {State.RETRY}
        lost += ids(given_up)
    assert sorted(lost) == sorted(running)


async def test_free_slots_of_all_keys_are_given_to_jobs_that_have_become_due(
    engine: ManualEngine, clock: ManualClock
) -> None:
    for first in range(0, COUNT, PAGE):
        keys = (f"user/{number}" for number in range(first, first + PAGE))
        await accept(engine, *(a_keyed_job(key, ONE, delay=9 * SECOND) for key in keys))
    clock.advance("10s")
    assert not any(each.holders for each in await engine.keys("shop", TYPE))
    await engine.promote(PAGE)
    assert sum(len(each.holders) for each in await engine.keys("shop", TYPE)) == COUNT


async def test_an_ended_worker_leaves_nothing_that_maintenance_looks_at(
    engine: ManualEngine,
) -> None:
    session = await a_session(engine)
    left, done = [await start(engine, session, a_job()) for _ in range(2)]
    places = engine._sessions.places
    assert len(await places(session)) == 2
    await settle(engine, done, complete(done))
    await engine.close_session(session)
    assert list(await places(session)) == [fence_of(left)]
    assert [each.record for each in (await engine.due("lost", 9)).jobs] == [left]
