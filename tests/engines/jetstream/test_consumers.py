"""The consumer of a type: how long it waits for a sign of a worker, and what it delivers."""

from __future__ import annotations

import asyncio

import pytest

from tests.engines.jetstream.manual import ManualEngine
from trellis.core.durations import SECOND, Micros
from trellis.core.job import JobId
from trellis.core.policy import Policy
from trellis.engines.demand import Demand
from trellis.engines.jetstream import replies
from trellis.engines.jetstream.hints import hint
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import JobName, Subjects, consumer_of
from trellis.errors import InvalidName
from trellis.testing.builders import a_worker


async def test_a_consumer_waits_as_long_as_its_type_may_be_silent_and_thirty_seconds_at_least(
    engine: ManualEngine, link: Link, deployed: Subjects
) -> None:
    session = await engine.open_session(a_worker(), 60 * SECOND)

    async def waits_with(silence: Micros | None) -> Micros:
        policy = Policy(activity_timeout=silence)
        demand = Demand("shop", ("invoice",), 1, policies=(policy,))
        await engine.claim(session.id, [demand], 1)
        name = consumer_of("shop", "invoice")
        info = await link.api(f"CONSUMER.INFO.{deployed.work}.{name}")
        return Micros(info["config"]["ack_wait"] // 1000)

    assert await waits_with(None) == 30 * SECOND
    assert await waits_with(300 * SECOND) == 300 * SECOND
    assert await waits_with(5 * SECOND) == 30 * SECOND


async def test_the_server_delivers_a_work_message_five_times_at_most(
    engine: ManualEngine, link: Link, deployed: Subjects
) -> None:
    session = await engine.open_session(a_worker(), 60 * SECOND)
    await engine.claim(session.id, [Demand("shop", ("invoice",), 1)], 1)
    name = consumer_of("shop", "invoice")
    info = await link.api(f"CONSUMER.INFO.{deployed.work}.{name}")
    assert info["config"]["max_deliver"] == 5
    assert info["config"]["ack_policy"] == "explicit"


@pytest.mark.parametrize("names", [("shop", "*"), ("shop", "a 0\r\nPUB b"), (">", "invoice")])
async def test_a_consumer_is_made_for_names_of_services_and_types_alone(
    engine: ManualEngine, names: tuple[str, str]
) -> None:
    with pytest.raises(InvalidName):
        await engine._lanes.provide_consumer(*names)


async def test_a_delivery_is_given_back_only_if_no_pull_takes_it(
    link: Link, deployed: Subjects, engine: ManualEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine._lanes.provide_consumer("shop", "invoice")
    name, returned = consumer_of("shop", "invoice"), asyncio.Queue[int]()
    deliveries = link._deliveries_of(f"$JS.API.CONSUMER.MSG.NEXT.{deployed.work}.{name}")

    async def deliver(job_id: str) -> None:
        """Let a pull that stands open get a work message."""
        await link.stand(deployed.work, name, 60.0, lambda found: returned.put_nowait(len(found)))
        await link.write(hint(deployed.due(JobName("shop", "invoice", JobId(job_id)))))
        while not deliveries._taken and returned.empty():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)

    monkeypatch.setattr(replies, "_OVERDUE", 3600.0)
    await deliver("first")
    assert deliveries._overdue is not None
    assert len(await link.pull(deployed.work, name, 1)) == 1
    assert deliveries._overdue is None  # else it would give back a later one too early
    monkeypatch.setattr(replies, "_OVERDUE", 0.0)
    await deliver("second")
    assert await returned.get() == 1
