"""The engine's time is that of the server's clock, however long an answer takes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from tests.harness.faults.processes import is_still
from tests.harness.faults.waiting import until
from tests.harness.servers.nats import NatsServer
from trellis.core.durations import SECOND, Instant, Micros
from trellis.engines.clock import uptime
from trellis.engines.jetstream import JetStreamEngine
from trellis.engines.jetstream import link as link_clock
from trellis.engines.jetstream import time as engine_clock
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.time import Time
from trellis.engines.jetstream.writing import PATIENCE
from trellis.engines.port import Engine
from trellis.engines.values import Renewed
from trellis.testing.builders import a_declaration, a_job, complete, fence_of
from trellis.testing.conformance.helpers import (
    a_session,
    accept_one,
    kinds,
    renew,
    settle,
    start,
    the,
)
from trellis.testing.conformance.schedules import ledger, put, step_of

#: Seconds for which the server does not answer.
SILENCE = 2.0
#: How many seconds clocks differ, and how much time a test may take.
HOUR = 3600.0
MARGIN = 60.0


def wrong_by(engine_time: Time) -> float:
    """Return how many seconds the engine's time is away from the clock of this machine."""
    return abs(engine_time.now() - time.time_ns() // 1000) / SECOND


async def silence(server: NatsServer) -> None:
    """Let a server stand still for a while."""
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: is_still(pid), "the server to stand still", 10)
    asyncio.get_running_loop().call_later(SILENCE, os.kill, pid, signal.SIGCONT)


async def test_an_answer_that_comes_late_does_not_move_the_clock(own_nats: NatsServer) -> None:
    link, engine_time = Link([own_nats.url]), Time(None)
    await link.open()
    await link.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    await engine_time.learn(link, "S")
    await silence(own_nats)
    await engine_time.learn(link, "S")
    await link.close()
    # Half of the silence is what an answer in the middle of it would mean.
    assert wrong_by(engine_time) < SILENCE / 4


async def test_a_first_answer_that_comes_late_is_followed_by_another_look(
    own_nats: NatsServer,
) -> None:
    link, engine_time = Link([own_nats.url]), Time(None)
    await link.open()
    await link.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    await silence(own_nats)
    await engine_time.learn(link, "S")
    await link.close()
    assert wrong_by(engine_time) < SILENCE / 4


# -- nodes whose clocks differ -----------------------------------------------------------------


class ShiftedLink(Link):
    """A connection to a server whose clock is so many seconds ahead."""

    ahead = 0.0

    async def server_time(
        self, stream: str, *, wait: float = PATIENCE
    ) -> tuple[Instant, Micros, Micros]:
        """Return the time of that clock."""
        told, before, after = await super().server_time(stream, wait=wait)
        return told + round(self.ahead * SECOND), before, after


@pytest.fixture
async def shifted(nats_url: str, deployed: Subjects) -> AsyncIterator[ShiftedLink]:
    """A connection whose server is exchanged for one with another clock."""
    link = ShiftedLink(nats_url.split(","))
    await link.open()
    yield link
    await link.close()


async def test_the_time_does_not_go_back_when_a_server_with_an_earlier_clock_leads(
    shifted: ShiftedLink, deployed: Subjects
) -> None:
    engine_time, told = Time(None), list[Instant]()
    for ahead in (0.0, 7.0, -7.0, 3.0, -3.0):
        shifted.ahead = ahead
        await engine_time.learn(shifted, deployed.state)
        told += [engine_time.now() for _ in range(3)]
    assert told == sorted(told)
    assert told[3] - told[2] > 6 * SECOND
    # The estimate follows the earlier clocks; until they come there, the time stands still.
    assert set(told[5:]) == {told[5]}
    fresh = Time(None)
    await fresh.learn(shifted, deployed.state)
    assert 9 * SECOND < told[-1] - fresh.now() < 11 * SECOND


@asynccontextmanager
async def engine_at(url: str, subjects: Subjects, ahead: float) -> AsyncIterator[Engine]:
    """Run an engine that asks a server whose clock is so many seconds ahead."""
    made, link = JetStreamEngine(url, prefix=subjects.prefix), ShiftedLink(url.split(","))
    link.ahead = ahead
    made._link = made._store.link = link
    await made.open()
    yield cast("Engine", made)
    await made.close()


def shift(engine: Engine, ahead: float) -> None:
    """Let an engine ask a server with another clock from now on."""
    link = cast("JetStreamEngine", engine)._link
    assert isinstance(link, ShiftedLink)
    link.ahead = ahead


@pytest.mark.parametrize(
    ("owner", "other", "lease", "is_due"),
    [
        (0.0, HOUR, HOUR + MARGIN, False),
        (0.0, HOUR, HOUR - MARGIN, True),
        (-HOUR / 2, HOUR / 2, HOUR + MARGIN, False),
        (HOUR, 0.0, MARGIN, False),
        (HOUR, 0.0, HOUR, False),
    ],
)
async def test_a_lease_ends_early_by_no_more_than_the_difference_of_two_clocks(
    nats_url: str, deployed: Subjects, owner: float, other: float, lease: float, *, is_due: bool
) -> None:
    async with (
        engine_at(nats_url, deployed, owner) as worker,
        engine_at(nats_url, deployed, other) as reaper,
    ):
        session = await a_session(worker, lease)
        record = await start(worker, session, a_job())
        await renew(worker, session, record)
        assert (await reaper.due("sessions", 9)).sessions == ((session,) if is_due else ())
        assert await reaper.reap(session) is is_due
        lost = (await reaper.due("lost", 9)).jobs
        assert [each.record for each in lost] == ([record] if is_due else [])


async def test_a_leader_that_looked_long_ago_ends_no_lease_that_was_renewed_by_an_earlier_clock(
    nats_url: str, deployed: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        engine_at(nats_url, deployed, 0.0) as leader,
        engine_at(nats_url, deployed, 0.0) as worker,
    ):
        session = await a_session(worker, MARGIN)
        for each in (leader, worker):
            shift(each, -HOUR)
        # The worker's time stands still since then; an hour later its lease is as long as before.
        later = round((HOUR + MARGIN / 2) * SECOND)
        monkeypatch.setattr(engine_clock, "uptime", lambda: uptime() + later)
        monkeypatch.setattr(link_clock, "uptime", lambda: uptime() + later)
        await renew(worker, session)
        assert (await leader.due("sessions", 9)).sessions == ()


async def test_a_time_that_was_learned_long_ago_is_learned_again(
    nats_url: str, deployed: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_at(nats_url, deployed, 0.0) as engine:
        shift(engine, HOUR)
        soon = await engine.now()
        monkeypatch.setattr(engine_clock, "_OLD", 0)
        assert await engine.now() - soon > (HOUR - MARGIN) * SECOND


async def lead(engine: Engine, ahead: float) -> None:
    """Let a server with another clock lead, at which the engine looks as at each renewal."""
    shift(engine, ahead)
    await cast("JetStreamEngine", engine)._store.learn_time()


@pytest.mark.parametrize("ahead", [7.0, -7.0])
async def test_a_leader_whose_clock_is_seconds_away_ends_no_lease_of_the_default_length(
    nats_url: str, deployed: Subjects, ahead: float
) -> None:
    async with (
        engine_at(nats_url, deployed, 0.0) as worker,
        engine_at(nats_url, deployed, 0.0) as reaper,
    ):
        session = await a_session(worker, "30s")
        record, told = await start(worker, session, a_job()), list[Instant]()
        for shift in (ahead, 0.0, ahead, -ahead, 0.0):
            await lead(reaper, shift)
            assert (await reaper.due("sessions", 9)).sessions == ()
            assert not await reaper.reap(session)
            await lead(worker, shift)
            renewed = await worker.renew(session, [fence_of(record)])
            assert isinstance(renewed, Renewed)
            assert (renewed.lost, renewed.unknown) == ((), ())
            told += [await worker.now(), await worker.now()]
        assert told == sorted(told)
        assert told[-1] - told[0] < (2 * abs(ahead) + MARGIN) * SECOND
        assert (await reaper.due("lost", 9)).jobs == ()
        done = await settle(worker, record, complete(record))
        assert await kinds(reaper, done) == ["created", "started", "completed"]


async def test_a_slot_fires_once_whatever_the_clocks_of_the_servers_that_lead(
    nats_url: str, deployed: Subjects
) -> None:
    half_past = HOUR / 2 - time.time() % HOUR
    async with (
        engine_at(nats_url, deployed, half_past) as behind,
        engine_at(nats_url, deployed, half_past + HOUR) as ahead,
    ):
        schedule = await put(behind, a_declaration(when="@every 1h", missed="all"))
        assert (await behind.due_schedules(9)).schedules == ()
        assert (await step_of(behind)).slots == ()
        assert (await ahead.due_schedules(9)).schedules == (schedule,)
        step = await step_of(ahead)
        assert [each.slot for each in step.slots] == [schedule.next_slot]
        (fired,) = await ahead.advance_schedule(step) or []
        assert await ahead.advance_schedule(step) is None
        assert (await behind.due_schedules(9)).schedules == ()
        await lead(behind, half_past + HOUR)
        await lead(ahead, half_past)
        for engine in (behind, ahead):
            assert (await engine.due_schedules(9)).schedules == ()
            assert (await step_of(engine)).slots == ()
        assert await ledger(behind) == [fired.decision]
        assert fired.job_id is not None
        assert len(await kinds(ahead, await the(behind, fired.job_id))) == 1


async def test_an_event_of_a_distant_time_moves_the_time_of_no_other_service(
    nats_url: str, deployed: Subjects
) -> None:
    async with (
        engine_at(nats_url, deployed, HOUR) as ahead,
        engine_at(nats_url, deployed, 0) as own,
    ):
        record = await accept_one(ahead, a_job())
        assert await the(own, record.definition.id) == record
        assert wrong_by(cast("JetStreamEngine", own)._store.time) < MARGIN


async def test_times_of_events_end_no_lease(nats_url: str, deployed: Subjects) -> None:
    engine = JetStreamEngine(nats_url, prefix=deployed.prefix)
    await engine.open()
    port = cast("Engine", engine)
    session = await a_session(port, "30s")
    assert await engine.take_lock("one", session) is None
    engine._store.time.saw(await engine.now() + 50 * SECOND)  # a service may write this
    assert await engine.now() - engine._store.time.told() > 40 * SECOND
    assert not (await engine.due("sessions", 9)).sessions
    assert not await engine.reap(session)
    holder = await engine.take_lock("one", await a_session(port))
    assert holder is not None
    assert holder.session == session
    await renew(port, session)
    assert not (await engine.due("sessions", 9)).sessions
    await engine.close()
