"""Everything at a glance: every number fits the jobs there are."""

from __future__ import annotations

from dataclasses import replace

from trellis.core.commands import Cancel, Fail
from trellis.core.durations import to_datetime
from trellis.core.job import Failure
from trellis.core.policy import KeyPolicy
from trellis.engines.port import Engine
from trellis.engines.values import QueueSettings
from trellis.insight.overview import overview
from trellis.insight.shared_views import RateView
from trellis.operations.queues import list_queues
from trellis.testing.builders import a_job, a_job_id, a_keyed_job, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    give_up_lost,
    reap_lapsed,
    settle,
    start,
)

BOOM = Failure("exception", "boom")


async def test_nothing_is_an_overview_of_nothing(engine: Engine) -> None:
    seen = await overview(engine)
    assert (seen.states, seen.types, seen.workers, seen.running) == ({}, {}, (), ())
    assert seen.ended == 0
    assert await list_queues(engine) == []


async def test_jobs_are_counted_by_state_and_by_type(engine: Engine) -> None:
    session = await a_session(engine)
    running = await start(engine, session, a_job())
    failed = await start(engine, session, a_job(type="refund"))
    await settle(engine, failed, Fail(fence_of(failed), BOOM, retryable=False))
    gone = await start(engine, session, a_job(service="depot"))
    await settle(engine, gone, Cancel(force=True))
    await accept(engine, a_job(), a_job(), a_job(type="refund"), a_job(service="depot"))
    seen = await overview(engine)
    assert seen.as_of == to_datetime(await engine.now())
    assert seen.states == {"active": 1, "cancelled": 1, "failed": 1, "pending": 4}
    assert seen.ended == 2
    assert list(seen.types.items()) == [
        ("depot/invoice", {"pending": 1}),
        ("shop/invoice", {"active": 1, "pending": 2}),
        ("shop/refund", {"failed": 1, "pending": 1}),
    ]
    assert [each.job.id for each in seen.running] == [running.definition.id]


async def test_a_job_that_blocks_its_key_does_not_run(engine: Engine, clock: ManualClock) -> None:
    policy = KeyPolicy("user/{id}", active=1, queued=None, when_full="wait")
    new = a_keyed_job("user/7", policy)
    new = new._replace(policy=replace(new.policy, on_lost="block"))
    await start(engine, await a_session(engine, "30s"), new)
    clock.advance("31s")
    await reap_lapsed(engine)
    await give_up_lost(engine)
    seen = await overview(engine)
    assert (seen.running, [job.id for job in seen.blocked]) == ((), [new.id])
    session = await a_session(engine)
    for _ in range(25):
        await start(engine, session, a_job())
    seen = await overview(engine)
    assert (len(seen.running), [job.id for job in seen.blocked]) == (20, [new.id])
    assert new.id not in {each.job.id for each in seen.running}


async def test_rates_are_of_types_and_of_queues(engine: Engine, clock: ManualClock) -> None:
    session = await a_session(engine)
    for name in ("invoice", "refund"):
        taken = await start(engine, session, a_job(type=name))
        began = clock.now()
        clock.advance("10s")
        word = Fail(fence_of(taken), BOOM, retryable=False, started_at=began)
        await settle(engine, taken, word)
    await accept(engine, a_job(type="refund"))
    since = to_datetime(clock.now())
    clock.advance("10s")
    expected = RateView(None, 0.2, 0.2, 10.0, 300.0)
    assert (await overview(engine)).rates == {
        "shop/invoice": expected,
        "shop/refund": replace(expected, waiting_since=since),
    }
    (queue,) = await list_queues(engine)
    assert queue.rates == RateView(since, 0.4, 0.4, 10.0, 300.0)


async def test_a_lost_worker_is_silent_then_offline(engine: Engine, clock: ManualClock) -> None:
    await a_session(engine, "30s")
    clock.advance("59s")
    assert [each.state for each in (await overview(engine)).workers] == ["silent"]
    await reap_lapsed(engine)
    assert [each.state for each in (await overview(engine)).workers] == ["silent"]
    clock.advance("1s")
    assert [each.state for each in (await overview(engine)).workers] == ["offline"]
    clock.advance("1d")
    await engine.prune(100)
    assert (await overview(engine)).workers == ()


async def test_queues_are_listed_by_service_with_what_waits_and_what_runs(engine: Engine) -> None:
    session = await a_session(engine)
    await start(engine, session, a_job())
    again = await start(engine, session, a_job(id=a_job_id()))
    await settle(engine, again, Fail(fence_of(again), BOOM))
    await accept(engine, a_job(), a_job(service="depot"), a_job(queue="slow"))
    await engine.set_queue(QueueSettings("shop", "quiet", paused=True))
    found = [
        (each.service, each.queue, each.waiting, each.active, each.paused)
        for each in await list_queues(engine)
    ]
    assert found == [
        ("depot", "invoices", 1, 0, False),
        ("shop", "invoices", 2, 1, False),
        ("shop", "quiet", 0, 0, True),
        ("shop", "slow", 1, 0, False),
    ]
