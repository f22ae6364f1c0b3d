"""Workers on JetStream: cancels that come by a hint, heartbeats of handlers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from nats.aio.msg import Msg

from tests.worker.faulty import eventually
from trellis import ActiveJob, JobCancelled, PerKey, Service
from trellis.core.commands import Cancel
from trellis.core.job import JobId
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.testing.conformance.helpers import settle, the
from trellis.worker import renewals


@pytest.fixture
async def service(
    nats_url: str, deployed: Subjects, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Service]:
    """A service whose workers renew their lease so rarely that no test sees it."""
    monkeypatch.setenv("TRELLIS_HEARTBEAT", "10m")
    async with Service("shop", f"{nats_url}?prefix={deployed.prefix}") as service:
        yield service


@pytest.mark.parametrize("force", [False, True])
async def test_a_cancel_reaches_its_handler_by_a_hint_alone(
    service: Service, monkeypatch: pytest.MonkeyPatch, *, force: bool
) -> None:
    monkeypatch.setattr(renewals, "_CHECK_INTERVAL", 3600.0)
    begun, stopped = asyncio.Event(), asyncio.Event()

    @service.job
    async def endless(job: ActiveJob[str]) -> None:
        try:
            async for _ in job.track(iter(int, 1)):
                begun.set()
                await asyncio.sleep(0.001)
        finally:
            stopped.set()

    async with service.worker(lease="1h"):
        ref = await endless.create("x")
        await asyncio.wait_for(begun.wait(), 10)
        engine = await service.connection.engine()
        await settle(engine, await the(engine, JobId(ref.id)), Cancel(force=force))
        await asyncio.wait_for(stopped.wait(), 10)
        with pytest.raises(JobCancelled):
            await ref.wait("10s")


async def test_a_heartbeat_renews_the_session_and_the_work_message_of_a_keyed_job(
    service: Service, link: Link, deployed: Subjects
) -> None:
    begun, beat, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    acknowledged: Counter[bytes] = Counter()

    def heard(message: Msg) -> None:
        acknowledged[message.data] += 1

    @service.job(per_key=PerKey.in_turn("all"))
    async def slow(job: ActiveJob[str]) -> None:
        begun.set()
        await beat.wait()
        while not done.is_set():
            job.heartbeat()
            await asyncio.sleep(0.01)

    await link.listen(f"$JS.ACK.{deployed.work}.>", heard)
    async with service.worker(lease="1h"):
        ref = await slow.create("x")
        await asyncio.wait_for(begun.wait(), 10)
        engine = await service.connection.engine()
        (before,) = await engine.sessions()
        sent = acknowledged[b"+WPI"]
        beat.set()

        async def is_renewed() -> bool:
            (session,) = await engine.sessions()
            return session.renewed_at > before.renewed_at and acknowledged[b"+WPI"] > sent

        await eventually(is_renewed)
        (key,) = await engine.keys("shop", "slow")
        assert key.holders == (ref.id,)
        done.set()
        await ref.wait("10s")
        await eventually(lambda: acknowledged[b"+ACK"] > 0)
