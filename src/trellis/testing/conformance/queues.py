"""Queues: no claims while paused, no new jobs while draining."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.admission import Reason
from trellis.core.commands import Release
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import Accepted, JobFilter, QueueSettings, Rejected
from trellis.testing.builders import (
    QUEUE,
    SERVICE,
    TYPE,
    a_demand,
    a_job,
    a_keyed_job,
    complete,
    fence_of,
)
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept,
    accept_one,
    claim,
    holders,
    ids,
    settle,
    start,
)
from trellis.testing.conformance.suite import EngineSuite


class TestQueues(EngineSuite):
    """Operators pause, drain and reopen queues."""

    async def test_no_queue_has_settings_at_first(self, engine: Engine) -> None:
        await accept_one(engine, a_job())
        assert await engine.queue_settings() == []

    async def test_settings_are_kept_per_queue_and_service(self, engine: Engine) -> None:
        settings = [
            QueueSettings("depot", QUEUE, paused=True),
            QueueSettings(SERVICE, QUEUE, draining=True),
            QueueSettings(SERVICE, "slow", paused=True, draining=True),
        ]
        for each in reversed(settings):
            await engine.set_queue(each)
        assert await engine.queue_settings() == settings
        reopened = QueueSettings(SERVICE, "slow")
        await engine.set_queue(reopened)
        assert await engine.queue_settings() == [*settings[:2], reopened]

    async def test_nothing_is_claimed_from_a_paused_queue(self, engine: Engine) -> None:
        session = await a_session(engine)
        record = await accept_one(engine, a_job())
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, paused=True))
        assert await claim(engine, session) == []
        await engine.set_queue(QueueSettings(SERVICE, QUEUE))
        assert ids(await claim(engine, session)) == ids([record])

    async def test_other_queues_go_on_while_one_is_paused(self, engine: Engine) -> None:
        await accept_one(engine, a_job(priority=4))
        open_one, elsewhere = await accept(engine, a_job(queue="slow"), a_job(service="depot"))
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, paused=True))
        demands = [
            a_demand(),
            a_demand(TYPE, queue="slow"),
            a_demand(TYPE, service="depot"),
        ]
        taken = await claim(engine, await a_session(engine), *demands)
        assert ids(taken) == ids([open_one, elsewhere])

    async def test_a_paused_queue_still_accepts_and_its_attempts_still_settle(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        back = await start(engine, session, a_job())
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, paused=True))
        await accept_one(engine, a_job())
        done = await settle(engine, taken, complete(taken))
        assert done.head.state is State.COMPLETED
        await settle(engine, back, Release(fence_of(back)))
        assert await claim(engine, session) == []

    async def test_a_paused_queue_hands_slots_on_but_starts_no_job(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job("user/7", IN_TURN))
        waiting = await accept_one(engine, a_keyed_job("user/7", IN_TURN))
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, paused=True))
        await settle(engine, taken, complete(taken))
        assert await holders(engine, "user/7") == ids([waiting])
        assert await claim(engine, session) == []
        await engine.set_queue(QueueSettings(SERVICE, QUEUE))
        assert ids(await claim(engine, session)) == ids([waiting])

    async def test_a_draining_queue_accepts_nothing_new(self, engine: Engine) -> None:
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, draining=True))
        other = a_job(queue="slow")
        keyed = a_keyed_job("user/7", IN_TURN)
        answers = await engine.create([a_job(), other, keyed])
        turned_away = Rejected(Reason.DRAINING, None)
        assert answers == [turned_away, Accepted(other.id), turned_away]
        found = await engine.find(JobFilter())
        assert ids(list(found.jobs)) == [other.id]

    async def test_a_draining_queue_finishes_what_it_has(self, engine: Engine) -> None:
        session = await a_session(engine)
        record = await accept_one(engine, a_job())
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, draining=True))
        (taken,) = await claim(engine, session)
        await settle(engine, taken, Release(fence_of(taken)))
        (again,) = await claim(engine, session)
        done = await settle(engine, again, complete(again))
        assert ids([done]) == ids([record])
        assert done.head.state is State.COMPLETED

    async def test_a_reopened_queue_accepts_again(self, engine: Engine) -> None:
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, draining=True))
        await engine.set_queue(QueueSettings(SERVICE, QUEUE))
        await accept_one(engine, a_job())
