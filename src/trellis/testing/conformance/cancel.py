"""Cancel: at once while a job waits, by a request while it runs, at once by force."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis import control
from trellis.core.commands import Cancel, Crash, Fail, LoseLease, Release, Snooze
from trellis.core.durations import SECOND
from trellis.core.job import Failure
from trellis.core.lifecycle import Refused, decide
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import Conflict
from trellis.testing.builders import a_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    claim,
    decided,
    journal,
    kinds,
    renew,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite

BOOM = Failure("exception", "boom")


class TestCancel(EngineSuite):
    """A cancel is stored, delivered and never overwritten."""

    async def test_a_waiting_job_is_cancelled_at_once(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        record = await accept_one(engine, a_job())
        after = await settle(engine, record, Cancel("not needed", actor="ann"))
        assert (after.head.state, after.head.finished_at) == (State.CANCELLED, clock.now())
        assert await claim(engine, await a_session(engine)) == []

    async def test_a_delayed_job_is_cancelled_and_never_promoted(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        record = await accept_one(engine, a_job(delay=5 * SECOND))
        await settle(engine, record, Cancel())
        clock.advance("5s")
        assert await engine.promote(10) == 0
        assert await claim(engine, await a_session(engine)) == []

    async def test_a_retry_is_cancelled_and_keeps_its_last_error(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        waiting = await settle(engine, taken, Fail(fence_of(taken), BOOM))
        after = await settle(engine, waiting, Cancel())
        assert (after.head.state, after.head.error) == (State.CANCELLED, BOOM)

    async def test_a_running_job_is_asked(self, engine: Engine, clock: ManualClock) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        clock.advance("3s")
        asked = await settle(engine, taken, Cancel("not needed", actor="ann"))
        assert (asked.head.state, asked.head.asked_at) == (State.ACTIVE, clock.now())
        assert asked.head.fence == taken.head.fence
        last = (await journal(engine, taken))[-1]
        assert last.kind == "cancelRequested"
        assert last.data == {"actor": "ann", "reason": "not needed"}

    async def test_however_an_asked_attempt_ends_its_job_is_cancelled(self, engine: Engine) -> None:
        session = await a_session(engine)
        for make in (
            lambda fence: Fail(fence, BOOM),
            lambda fence: Fail(fence, BOOM, retryable=False),
            lambda fence: Snooze(fence, SECOND),
            lambda fence: Release(fence),  # noqa: PLW0108 - one shape for all
            lambda fence: LoseLease(fence),  # noqa: PLW0108 - as above
            lambda fence: Crash(fence, "signal 9"),
        ):
            taken = await start(engine, session, a_job())
            asked = await settle(engine, taken, Cancel())
            after = await settle(engine, asked, make(fence_of(asked)))
            assert after.head.state is State.CANCELLED

    async def test_an_asked_attempt_that_completes_has_completed(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        asked = await settle(engine, taken, Cancel())
        after = await settle(engine, asked, complete(asked))
        assert after.head.state is State.COMPLETED

    async def test_a_forced_cancel_takes_the_job_from_its_attempt(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        late = await decided(engine, taken, complete(taken))
        after = await settle(engine, taken, Cancel(force=True))
        assert (after.head.state, after.head.fence) == (State.CANCELLED, None)
        assert await engine.commit([late]) == [Conflict(after)]
        assert (await renew(engine, session, taken)).lost == (fence_of(taken),)

    async def test_an_asked_job_can_still_be_forced(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        asked = await settle(engine, taken, Cancel())
        await settle(engine, asked, Cancel(force=True))
        expected = ["created", "started", "cancelRequested", "cancelled"]
        assert await kinds(engine, taken) == expected

    async def test_an_ended_job_cannot_be_cancelled(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        await settle(engine, taken, complete(taken))
        done = await the(engine, taken.definition.id)
        for force in (True, False):
            assert isinstance(decide(done, Cancel(force=force), clock.now()), Refused)

    async def test_a_cancel_that_lost_a_race_is_not_journalled_before_what_it_lost_to(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        started, retried = await accept(engine, a_job(), a_job())
        first_look = await engine.now()
        clock.advance("3s")
        await claim(engine, session)
        clock.advance("3s")
        taken = await the(engine, retried.definition.id)
        await settle(engine, taken, Fail(fence_of(taken), BOOM))
        clock.advance("3s")
        changes = [(record, Cancel(force=True)) for record in (started, retried)]
        results = await control.apply_all(engine, changes, first_look)
        assert all(isinstance(each, control.Applied) for each in results)
        for record in (started, retried):
            events = await journal(engine, record)
            assert events[-1].at == clock.now()
            assert events == sorted(events, key=lambda each: each.at)
