"""The worker logs an outage of the engine once, and once that it is over."""

from __future__ import annotations

import logging
import math
import time

import pytest

from tests.worker.faulty import FaultyEngine, eventually
from tests.worker.test_leases import create, service_of, state, worker
from trellis.core.job import SessionId
from trellis.core.states import State
from trellis.engines.values import LockHolder
from trellis.errors import EngineUnavailable, OutcomeUnknown
from trellis.worker.outage import OutageLog

AWAY = "The engine does not answer"
BACK = "The engine answers again"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]


def test_an_outage_is_over_when_every_part_has_had_an_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage, error = OutageLog(), EngineUnavailable("No server.")
    outage.answered("claims")
    outage.failed("claims", error, time.monotonic())
    outage.failed("lease", error, time.monotonic())
    outage.failed("claims", error, time.monotonic())
    outage.answered("claims")
    assert [line[: len(AWAY)] for line in lines(caplog)] == [AWAY]
    outage.answered("lease")
    outage.answered("lease")
    assert lines(caplog)[1:] == [f"{BACK}, after 0s."]


def test_a_call_from_before_the_end_of_an_outage_is_no_second_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage, error = OutageLog(), EngineUnavailable("No server.")
    began = time.monotonic()
    outage.failed("claims", error, began)
    outage.answered("claims")
    outage.failed("settlements", error, began)
    assert not outage.is_present
    assert len(lines(caplog)) == 2
    outage.failed("settlements", error, math.inf)
    assert outage.is_present
    assert [line[: len(AWAY)] for line in lines(caplog)[2:]] == [AWAY]


async def test_a_worker_logs_one_line_when_the_engine_is_away_and_one_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None: ...

    service = service_of(work)
    engine = FaultyEngine()
    async with worker(engine, service) as supervisor:
        engine.down = True
        await eventually(supervisor._health.lease_may_have_expired)
        engine.down = False
        job_id = await create(engine, service.find("work"))

        async def is_over() -> bool:
            return await state(engine, job_id) is State.COMPLETED and len(lines(caplog)) > 1

        await eventually(is_over)
    away, back = lines(caplog)
    assert away.startswith(f"{AWAY}: The engine is down for a test.")
    assert back.startswith(BACK)


class LosesReplies(FaultyEngine):
    """Takes the leader's lock and loses the reply, a few times."""

    losses = 3

    async def take_lock(self, name: str, session: SessionId, token: int = 0) -> LockHolder | None:
        holder = await super().take_lock(name, session, token)
        if self.losses:
            self.losses -= 1
            raise OutcomeUnknown("The connection was lost during a call.")
        return holder


async def test_a_lost_reply_while_standing_for_leader_is_an_outage_and_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None: ...

    engine = LosesReplies()
    async with worker(engine, service_of(work)):
        await eventually(lambda: BACK in caplog.text)
    assert all(record.exc_info is None for record in caplog.records)
    away, back = lines(caplog)
    assert away.startswith(f"{AWAY}: The connection was lost")
    assert back.startswith(BACK)
