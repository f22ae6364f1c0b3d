"""Claims over several types, woken by hints, with settings that are not read each time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from trellis.core.durations import SECOND
from trellis.core.job import SessionId
from trellis.engines.demand import Demand
from trellis.engines.jetstream import JetStreamEngine
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.operating import Drain
from trellis.engines.values import Accepted, QueueSettings
from trellis.testing.builders import SERVICE, a_job, a_worker

_PATIENCE = 20.0
ONE = a_job().type


@pytest.fixture
async def engines(
    nats_url: str, deployed: Subjects
) -> AsyncIterator[tuple[JetStreamEngine, JetStreamEngine]]:
    """Two engine objects on one deployment, with the server's clock."""
    one, two = (JetStreamEngine(nats_url, prefix=deployed.prefix) for _ in range(2))
    await one.open()
    await two.open()
    yield one, two
    await one.close()
    await two.close()


async def a_session(engine: JetStreamEngine) -> SessionId:
    return (await engine.open_session(a_worker(), 60 * SECOND)).id


async def test_types_without_work_leave_their_share_to_the_others(
    engines: tuple[JetStreamEngine, JetStreamEngine],
) -> None:
    engine, _ = engines
    await engine.create([a_job() for _ in range(10)])
    await engine.catch_up()
    demand = Demand(SERVICE, ("none", ONE, "nothing"), 10)
    claimed = await engine.claim(await a_session(engine), [demand], 10)
    assert len(claimed.jobs) == 10


async def test_the_work_of_a_hint_can_be_claimed(
    engines: tuple[JetStreamEngine, JetStreamEngine],
) -> None:
    creator, worker = engines
    session, demand = await a_session(worker), Demand(SERVICE, (ONE, "other"), 5)
    hinted = asyncio.Event()

    async def watch() -> None:
        async for _ in worker.watch(("ready",)):
            hinted.set()

    watching = asyncio.create_task(watch())
    await worker.claim(session, [demand], 5)
    left, started = 30, 0
    async with asyncio.timeout(_PATIENCE):
        while started < 30:
            if left:
                await creator.create([a_job()])
                left -= 1
            await hinted.wait()
            hinted.clear()
            started += len((await worker.claim(session, [demand], 5)).jobs)
    watching.cancel()


async def test_a_queue_that_another_process_pauses_is_not_claimed_from(
    engines: tuple[JetStreamEngine, JetStreamEngine],
) -> None:
    operator, worker = engines
    session, demand = await a_session(worker), Demand(SERVICE, (ONE,), 5)
    await worker.claim(session, [demand], 5)  # the settings are known now
    new = a_job()
    await operator.set_queue(QueueSettings(SERVICE, new.queue, paused=True))
    await operator.create([new])
    await operator.catch_up()
    assert (await worker.claim(session, [demand], 5)).jobs == ()
    await operator.set_queue(QueueSettings(SERVICE, new.queue))
    async with asyncio.timeout(_PATIENCE):
        while not (await worker.claim(session, [demand], 5)).jobs:
            pass


async def test_a_drain_is_honoured_by_its_own_process_at_once_and_soon_by_others(
    engines: tuple[JetStreamEngine, JetStreamEngine],
) -> None:
    operator, creator = engines
    assert isinstance((await creator.create([a_job()]))[0], Accepted)
    await operator.set_drain(Drain(True, "ann", "upgrade"))
    assert not isinstance((await operator.create([a_job()]))[0], Accepted)
    async with asyncio.timeout(_PATIENCE):
        while isinstance((await creator.create([a_job()]))[0], Accepted):
            pass


async def test_an_ended_session_claims_nothing_although_it_was_known_to_be_open(
    engines: tuple[JetStreamEngine, JetStreamEngine],
) -> None:
    engine, _ = engines
    session, demand = await a_session(engine), Demand(SERVICE, (ONE,), 5)
    await engine.claim(session, [demand], 5)
    await engine.create([a_job()])
    await engine.catch_up()
    await engine.close_session(session)
    assert (await engine.claim(session, [demand], 5)).jobs == ()


@pytest.mark.parametrize("closes", [False, True], ids=["busy", "closed"])
async def test_a_job_that_was_delivered_to_a_worker_without_room_goes_to_another(
    engines: tuple[JetStreamEngine, JetStreamEngine], *, closes: bool
) -> None:
    idle, other = engines
    demand = Demand(SERVICE, (ONE,), 5)

    async def watch() -> None:
        async for _ in idle.watch(("ready",)):
            pass

    watching = asyncio.create_task(watch())
    await idle.create([a_job()])
    session = await a_session(idle)
    async with asyncio.timeout(_PATIENCE):
        # Its next job is delivered without a pull from now on.
        while not (await idle.claim(session, [demand], 5)).jobs:
            pass
        await other.create([a_job()])
        await other.catch_up()
        if closes:
            await idle.close()
        session = await a_session(other)
        while not (await other.claim(session, [demand], 5)).jobs:
            pass
    watching.cancel()


async def test_hints_at_parked_jobs_do_not_stay_in_the_stream(
    engines: tuple[JetStreamEngine, JetStreamEngine], link: Link, deployed: Subjects
) -> None:
    engine, _ = engines
    new = a_job()
    await engine.set_queue(QueueSettings(SERVICE, new.queue, paused=True))
    await engine.create([new])
    await engine.catch_up()
    demand = Demand(SERVICE, (ONE,), 5)
    assert (await engine.claim(await a_session(engine), [demand], 5)).jobs == ()
    await engine.set_queue(QueueSettings(SERVICE, new.queue))
    hint = await link.last(deployed.later, f"{deployed.prefix}.due.>")
    assert hint is not None
    assert hint.headers["Nats-TTL"] == "1h"
