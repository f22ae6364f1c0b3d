"""What locks leave in the stream of states, and marks whose end was not stored."""

from __future__ import annotations

from tests.engines.jetstream.manual import ManualEngine
from trellis.core.durations import SECOND
from trellis.core.job import JobRecord, SessionId
from trellis.testing import ManualClock
from trellis.testing.builders import a_demand, a_job, a_worker, complete, fence_of
from trellis.testing.conformance.helpers import accept_one, decided


async def a_session(engine: ManualEngine) -> SessionId:
    return (await engine.open_session(a_worker(), 30 * SECOND)).id


async def an_attempt(engine: ManualEngine) -> JobRecord:
    await accept_one(engine, a_job())
    (taken,) = (await engine.claim(await a_session(engine), [a_demand()], 1)).jobs
    return taken


async def stored(engine: ManualEngine) -> int:
    """Return how many locks have a message."""
    locks = engine._subjects.value("lock", "*")
    return len(await engine._store.subjects_of(locks))


async def test_a_freed_lock_leaves_nothing(engine: ManualEngine) -> None:
    session = await a_session(engine)
    for name in ("a", "b"):
        await engine.take_lock(name, session)
    assert await engine.free_lock("a", session)
    assert await stored(engine) == 1
    assert await engine.take_lock("a", await a_session(engine)) is None


async def test_locks_of_ended_sessions_are_forgotten_and_others_are_not(
    engine: ManualEngine, clock: ManualClock
) -> None:
    ended, lapsed = await a_session(engine), await a_session(engine)
    await engine.take_lock("ended", ended)
    await engine.take_lock("lapsed", lapsed)
    await engine.close_session(ended)
    clock.advance("31s")
    assert await engine._locks.forget(10) == 1
    await engine.renew(lapsed, [])
    assert [lock.name for lock in await engine.locks()] == ["lapsed"]


async def test_a_mark_means_nothing_while_the_attempt_is_the_present_one(
    engine: ManualEngine, clock: ManualClock
) -> None:
    taken = await an_attempt(engine)
    fence = fence_of(taken)
    assert await engine.take_lock("table", *fence) is None
    await engine._locks.linger(fence, clock.now() + SECOND)
    clock.advance("2s")
    assert await engine._locks.end_overdue() == 0
    assert await engine._locks.end_lingering({fence}) == 0
    assert await engine.take_lock("table", *fence) is None
    await engine.commit([await decided(engine, taken, complete(taken))])
    assert await engine.locks() == []


async def test_a_lock_of_an_attempt_is_taken_by_a_process_that_did_not_claim_it(
    engine: ManualEngine, nats_url: str, clock: ManualClock
) -> None:
    taken = await an_attempt(engine)
    prefix = engine._subjects.prefix
    other = ManualEngine(nats_url, prefix=prefix, clock=clock)
    await other.open()
    assert await other.take_lock("table", *fence_of(taken)) is None
    (holder,) = await engine.locks()
    assert holder.job_id == taken.definition.id
    await other.close()
