"""The maintenance of a worker while no admin runtime answers."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from tests.engines.jetstream.manual import ManualEngine
from trellis import Service
from trellis.core.durations import SECOND
from trellis.core.states import State
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.testing import ManualClock
from trellis.testing.builders import a_job, a_worker
from trellis.testing.conformance.helpers import a_session, head, start
from trellis.worker.maintenance import Maintenance
from trellis.worker.outage import OutageLog
from trellis.worker.session import RenewalHealth, SessionHolder
from trellis.worker.shared_status import SharedStatus


async def test_lost_jobs_are_given_up_and_the_missing_runtime_is_logged_once(
    engine: ManualEngine, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    port = cast("Engine", engine)
    lost = await start(port, await a_session(port, "10s"), a_job())
    health = RenewalHealth(10 * SECOND, SECOND, clock.lease_now)
    session = SessionHolder(port, a_worker(), 10 * SECOND, SharedStatus(1))
    maintenance = Maintenance(
        port, session, health, lambda: None,
        sweep=SECOND, poll=SECOND, keep_audit=SECOND, outage=OutageLog(),
    )  # fmt: skip
    for _ in range(11):
        clock.advance("1s")
        health.record_success(clock.lease_now())
    caplog.set_level(logging.WARNING, "trellis")
    for _ in range(3):
        await maintenance.sweep()
        await maintenance.promote()
        await maintenance.prune()
    assert (await head(port, lost)).state is State.RETRY
    about = [each.getMessage() for each in caplog.records if "admin runtime" in each.getMessage()]
    assert len(about) == 1
    assert about[0].endswith("Deadlines, timeouts and retention wait until then.")


async def test_a_job_is_cancelled_and_looked_at_without_an_admin_runtime(
    nats_url: str, deployed: Subjects
) -> None:
    service = Service("shop", f"{nats_url}?prefix={deployed.prefix}")

    @service.job
    async def send(number: int) -> int:
        return number

    async with service, service.worker():
        assert await (await send.create(1)).wait("20s") == 1
        doomed = await send.create(2, delay="1h")
        assert (await doomed.status()).state is State.PENDING
        await doomed.cancel()
        assert (await doomed.status()).state is State.CANCELLED
