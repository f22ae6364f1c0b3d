"""Outcomes: how each generation of a job ended, with its result or its error."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.commands import Cancel, Complete, Dismiss, Expire, Fail, Replay
from trellis.core.commands import Retry as RetryJob
from trellis.core.durations import SECOND
from trellis.core.job import Failure
from trellis.core.policy import Policy
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import Conflict, Outcome
from trellis.testing.builders import a_job, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept_one,
    attempt,
    claim_one,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite

BOOM = Failure("exception", "boom", "Traceback")
NEVER = Policy(retry=Retry.never())


class TestOutcomes(EngineSuite):
    """Each generation of a job has one outcome."""

    async def test_a_live_job_has_no_outcome(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        assert await engine.outcomes(taken.definition.id) == []
        await settle(engine, taken, Fail(fence_of(taken), BOOM))
        assert await engine.outcomes(taken.definition.id) == []

    async def test_a_completed_job_has_its_result(self, engine: Engine, clock: ManualClock) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        began = clock.now() + 5
        clock.advance("3s")
        result = '{"sent":"Zoë"}'
        await settle(engine, taken, Complete(fence_of(taken), result, 0, began))
        assert await engine.outcomes(taken.definition.id) == [
            Outcome(0, State.COMPLETED, 1, began, clock.now(), result, None)
        ]

    async def test_a_partial_success_has_its_result_too(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        await settle(engine, taken, Complete(fence_of(taken), "[1]", 2))
        (outcome,) = await engine.outcomes(taken.definition.id)
        assert (outcome.state, outcome.result) == (State.COMPLETED_WITH_ERRORS, "[1]")

    async def test_a_job_without_a_result_has_none(self, engine: Engine) -> None:
        session = await a_session(engine)
        for result in (None, "null"):
            taken = await start(engine, session, a_job())
            await settle(engine, taken, Complete(fence_of(taken), result))
            (outcome,) = await engine.outcomes(taken.definition.id)
            assert outcome.result == result

    async def test_a_failed_job_has_its_error(self, engine: Engine, clock: ManualClock) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        fail = Fail(fence_of(taken), BOOM, retryable=False, started_at=clock.now())
        await settle(engine, taken, fail)
        now = clock.now()
        assert await engine.outcomes(taken.definition.id) == [
            Outcome(0, State.FAILED, 1, now, now, None, BOOM)
        ]

    async def test_jobs_that_never_ran_have_an_outcome_too(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        cancelled = await accept_one(engine, a_job())
        await settle(engine, cancelled, Cancel())
        expired = await accept_one(engine, a_job(deadline_in=SECOND))
        before = clock.now()
        clock.advance("1s")
        await settle(engine, expired, Expire())
        assert await engine.outcomes(cancelled.definition.id) == [
            Outcome(0, State.CANCELLED, 0, None, before, None, None)
        ]
        assert await engine.outcomes(expired.definition.id) == [
            Outcome(0, State.EXPIRED, 0, None, clock.now(), None, None)
        ]

    async def test_each_generation_has_an_outcome_of_its_own(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1h")
        taken = await start(engine, session, a_job())
        failed = await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        revived = await settle(engine, failed, RetryJob())
        first = Outcome(0, State.FAILED, 1, None, clock.now(), None, BOOM)
        assert await engine.outcomes(revived.definition.id) == [first]
        clock.advance("1s")
        again = await claim_one(engine, session)
        await settle(engine, again, Complete(fence_of(again), "7"))
        second = Outcome(1, State.COMPLETED, 1, None, clock.now(), "7", None)
        assert await engine.outcomes(revived.definition.id) == [first, second]

    async def test_a_dismissed_letter_ends_as_dismissed_and_keeps_its_error(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        taken = await start(engine, await a_session(engine), a_job(policy=NEVER))
        dead = await settle(engine, taken, Fail(fence_of(taken), BOOM, started_at=5))
        clock.advance("1s")
        await settle(engine, dead, Dismiss())
        assert await engine.outcomes(dead.definition.id) == [
            Outcome(0, State.DISMISSED, 1, 5, clock.now(), None, BOOM)
        ]

    async def test_a_letter_that_dies_again_has_two_outcomes(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job(policy=NEVER))
        dead = await settle(engine, taken, Fail(fence_of(taken), BOOM))
        await settle(engine, dead, Replay())
        again = await claim_one(engine, session)
        await settle(engine, again, Fail(fence_of(again), BOOM))
        outcomes = await engine.outcomes(dead.definition.id)
        assert [(each.generation, each.state) for each in outcomes] == [
            (0, State.DEAD),
            (1, State.DEAD),
        ]

    async def test_a_decision_about_an_earlier_end_is_refused(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job(policy=NEVER))
        dead = await settle(engine, taken, Fail(fence_of(taken), BOOM))
        await settle(engine, dead, Replay())
        again = await claim_one(engine, session)
        after = await settle(engine, again, Complete(fence_of(again), "7"))
        for command in (Dismiss(), Replay()):
            assert await attempt(engine, dead, command) == Conflict(after)
        assert await the(engine, dead.definition.id) == after
        assert [each.state for each in await engine.outcomes(dead.definition.id)] == [
            State.DEAD,
            State.COMPLETED,
        ]
