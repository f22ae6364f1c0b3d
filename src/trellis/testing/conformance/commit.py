"""Commit: head and event together or not at all, guarded by version and fence."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from trellis.core.commands import (
    Cancel,
    Command,
    Complete,
    Crash,
    Exhaust,
    Fail,
    LoseLease,
    Release,
    Snooze,
)
from trellis.core.durations import SECOND
from trellis.core.job import Failure, Fence, JobRecord, NewJob, Prerequisite, SessionId
from trellis.core.policy import DEFAULT_POLICY, Hook, Policy
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import Committed, Conflict
from trellis.testing.builders import a_demand, a_fence, a_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    attempt,
    claim,
    claim_one,
    decided,
    journal,
    kinds,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite

BOOM = Failure("exception", "boom", "Traceback: …")
ENDINGS: tuple[Callable[[Fence], Command], ...] = (
    lambda fence: Complete(fence, "7", 3, 12),
    lambda fence: Fail(fence, BOOM, roll=0.3),
    lambda fence: Fail(fence, BOOM, retryable=False),
    lambda fence: Fail(fence, BOOM, delay=9 * SECOND),
    lambda fence: Fail(fence, BOOM, cancelled=True),
    lambda fence: Snooze(fence, 3 * SECOND),
    Release,
    lambda fence: Release(fence, begun=False),
    lambda fence: LoseLease(fence, "silent", stopped=False),
    lambda fence: Crash(fence, "signal 11"),
    lambda fence: Crash(fence, "signal 11", begun=False),
    lambda fence: Crash(fence, "signal 11", alone=False),
)


class TestCommit(EngineSuite):
    """A decision is stored whole, or not at all."""

    async def test_a_committed_transition_is_what_is_read_back(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        clock.advance("2s")
        transition = await decided(engine, taken, complete(taken, '{"sent":true}'))
        assert await engine.commit([transition]) == [Committed()]
        stored = await the(engine, taken.definition.id)
        assert stored == (transition.definition, transition.head)
        assert (await journal(engine, taken))[-1] == transition.event

    async def test_every_way_an_attempt_can_end_is_read_back(self, engine: Engine) -> None:
        session = await a_session(engine)
        policy = Policy(retry=Retry.fixed("5s", attempts=2), on_shutdown="fail", max_crashes=2)
        for number, ending in enumerate(ENDINGS):
            taken = await start(engine, session, a_job(policy=policy, type=f"type-{number}"))
            await settle(engine, taken, ending(fence_of(taken)))

    async def test_a_batch_is_answered_in_order(self, engine: Engine) -> None:
        session = await a_session(engine)
        await accept(engine, a_job(), a_job(), a_job())
        one, two, three = await claim(engine, session)
        old = await decided(engine, two, complete(two))
        newest = await settle(engine, two, Fail(fence_of(two), BOOM))
        batch = [await decided(engine, one, complete(one)), old]
        batch.append(await decided(engine, three, complete(three)))
        assert await engine.commit(batch) == [Committed(), Conflict(newest), Committed()]
        states = [(await the(engine, each.definition.id)).head.state for each in (one, two, three)]
        assert states == [State.COMPLETED, State.RETRY, State.COMPLETED]

    @pytest.mark.parametrize("dead_letters", [True, False])
    async def test_a_waiting_job_that_the_store_gave_up_has_ended(
        self, engine: Engine, *, dead_letters: bool
    ) -> None:
        session = await a_session(engine)
        policy = Policy(retry=Retry.fixed(0), dead_letters=dead_letters)
        fresh = await accept_one(engine, a_job(policy=policy))
        again = await start(engine, session, a_job(policy=policy, type="other"))
        again = await settle(engine, again, Release(fence_of(again)))
        for waiting in (fresh, again):
            ended = await settle(engine, waiting, Exhaust("5 deliveries"))
            assert ended.head.state is (State.DEAD if dead_letters else State.FAILED)
            assert ended.head.error == Failure("exhausted", "5 deliveries")
            assert (await engine.outcomes(ended.definition.id))[0].error == ended.head.error
        assert await claim(engine, session, a_demand(), a_demand("other")) == []

    async def test_an_empty_batch_changes_nothing(self, engine: Engine) -> None:
        assert await engine.commit([]) == []

    async def test_two_transitions_of_one_job_in_a_batch_follow_each_other(
        self, engine: Engine
    ) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        asked = await decided(engine, taken, Cancel())
        stopped = await decided(
            engine,
            taken._replace(head=asked.head),
            Fail(fence_of(taken), BOOM),
        )
        assert await engine.commit([asked, stopped]) == [Committed(), Committed()]
        expected = ["created", "started", "cancelRequested", "cancelled"]
        assert await kinds(engine, taken) == expected

    async def test_data_of_an_event_comes_back_as_it_was(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job())
        reason = 'because "Zoë" said so \N{GRINNING FACE}'
        await settle(engine, record, Cancel(reason, actor="ann"))
        assert (await journal(engine, record))[-1].data == {"actor": "ann", "reason": reason}

    async def test_errors_come_back_whole(self, engine: Engine) -> None:
        session = await a_session(engine)
        for error in (BOOM, Failure("timeout", ""), Failure("x", "Zoë\n\t\"'", None)):
            taken = await start(engine, session, a_job())
            after = await settle(engine, taken, Fail(fence_of(taken), error, retryable=False))
            assert after.head.error == error


class TestConflicts(EngineSuite):
    """A decision made against an outdated head stores nothing."""

    async def test_a_conflict_carries_the_job_as_it_is(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        late = await decided(engine, taken, complete(taken))
        current = await settle(engine, taken, Cancel())
        assert await engine.commit([late]) == [Conflict(current)]

    async def test_a_stale_version_commits_and_journals_nothing(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        late = await decided(engine, taken, complete(taken))
        current = await settle(engine, taken, Cancel())
        before = await journal(engine, taken)
        await engine.commit([late])
        assert await the(engine, taken.definition.id) == current
        assert await journal(engine, taken) == before
        assert await engine.outcomes(taken.definition.id) == []

    async def test_an_asked_cancel_cannot_be_overwritten(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        retry = await decided(engine, taken, Fail(fence_of(taken), BOOM))
        asked = await settle(engine, taken, Cancel())
        assert await engine.commit([retry]) == [Conflict(asked)]
        done = await settle(engine, asked, Fail(fence_of(asked), BOOM))
        assert done.head.state is State.CANCELLED

    async def test_a_stale_fence_commits_and_journals_nothing(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        good = await decided(engine, taken, complete(taken))
        forged = good._replace(before=good.before._replace(fence=a_fence()))
        missing = good._replace(before=good.before._replace(fence=None))
        assert await engine.commit([forged, missing]) == [Conflict(taken), Conflict(taken)]
        assert await kinds(engine, taken) == ["created", "started"]

    async def test_the_same_transition_is_stored_once(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        once = await decided(engine, taken, complete(taken))
        assert await engine.commit([once]) == [Committed()]
        done = await the(engine, taken.definition.id)
        assert await engine.commit([once]) == [Conflict(done)]
        assert await engine.commit([once, once]) == [Conflict(done), Conflict(done)]
        assert await kinds(engine, taken) == ["created", "started", "completed"]
        assert len(await engine.outcomes(taken.definition.id)) == 1

    async def test_the_same_transition_twice_in_a_batch_is_stored_once(
        self, engine: Engine
    ) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        once = await decided(engine, taken, complete(taken))
        first, second = await engine.commit([once, once])
        assert first == Committed()
        assert second == Conflict(await the(engine, taken.definition.id))

    async def test_of_concurrent_settlements_exactly_one_is_stored(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        rivals = [
            await decided(engine, taken, command)
            for command in (
                complete(taken),
                Fail(fence_of(taken), BOOM),
                Cancel(force=True),
                Cancel(),
                Snooze(fence_of(taken), SECOND),
            )
        ]
        answers = await asyncio.gather(*(engine.commit([each]) for each in rivals))
        assert sum(answer == [Committed()] for answer in answers) == 1
        assert len(await journal(engine, taken)) == 3

    async def test_a_claim_in_between_is_a_conflict(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job())
        cancel = await decided(engine, record, Cancel())
        taken = await claim_one(engine, await a_session(engine))
        assert await engine.commit([cancel]) == [Conflict(taken)]

    async def test_a_job_that_is_gone_is_a_conflict_with_nothing(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        record = await accept_one(engine, a_job())
        late = await decided(engine, record, Cancel())
        await settle(engine, record, Cancel())
        clock.advance("8d")
        assert await engine.prune(10) == 1
        assert await engine.commit([late]) == [Conflict(None)]

    async def test_a_conflict_can_be_decided_again(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        late = await decided(engine, taken, Fail(fence_of(taken), BOOM))
        await settle(engine, taken, Cancel())
        (answer,) = await engine.commit([late])
        assert isinstance(answer, Conflict)
        assert answer.record is not None
        assert await attempt(engine, answer.record, late.command) == Committed()
        assert (await the(engine, taken.definition.id)).head.state is State.CANCELLED


_HOOKED = Policy(hooks=(Hook("finished", "after", "hooks"),))


class TestSeveralDecisionsAboutAJob(EngineSuite):
    """In one call they count in their order, each as if it had a call of its own."""

    @staticmethod
    async def _two_attempts(
        engine: Engine, session: SessionId, new: NewJob
    ) -> tuple[JobRecord, JobRecord]:
        """Create a job; return it as an old attempt and as the current one has it."""
        old = await start(engine, session, new)
        await settle(engine, old, Release(fence_of(old)))
        return old, await claim_one(engine, session)

    @pytest.mark.parametrize("policy", [DEFAULT_POLICY, _HOOKED])
    async def test_an_old_attempt_does_not_keep_the_current_one_from_settling(
        self, engine: Engine, policy: Policy
    ) -> None:
        old, current = await self._two_attempts(
            engine, await a_session(engine), a_job(policy=policy)
        )
        late = await decided(engine, old, complete(old))
        timely = await decided(engine, current, complete(current))
        answers = await engine.commit([late, timely, late])
        ended = await the(engine, current.definition.id)
        assert ended.head.state is State.COMPLETED
        assert answers == [Conflict(current), Committed(), Conflict(ended)]

    @pytest.mark.parametrize("policy", [DEFAULT_POLICY, _HOOKED])
    async def test_a_job_that_goes_on_is_not_ended_by_another_decision(
        self, engine: Engine, policy: Policy
    ) -> None:
        old, current = await self._two_attempts(
            engine, await a_session(engine), a_job(policy=policy)
        )
        late = await decided(engine, old, complete(old))
        snoozed = await decided(engine, current, Snooze(fence_of(current), SECOND))
        timely = await decided(engine, current, complete(current))
        answers = await engine.commit([late, snoozed, timely])
        waiting = await the(engine, current.definition.id)
        assert waiting.head == snoozed.head
        assert answers == [Conflict(current), Committed(), Conflict(waiting)]

    async def test_a_job_that_another_follows_is_answered_in_order(self, engine: Engine) -> None:
        session = await a_session(engine)
        old, current = await self._two_attempts(engine, session, a_job())
        await accept_one(engine, a_job(after=(Prerequisite(current.definition.id),)))
        late = await decided(engine, old, complete(old))
        timely = await decided(engine, current, complete(current))
        answers = await engine.commit([timely, timely, late])
        ended = await the(engine, current.definition.id)
        assert answers == [Committed(), Conflict(ended), Conflict(ended)]

    async def test_a_success_does_not_overtake_another_decision(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken, other = [await start(engine, session, a_job()) for _ in range(2)]
        failed = await decided(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        done = await decided(engine, taken, complete(taken))
        also_done = await decided(engine, other, complete(other))
        answers = await engine.commit([failed, also_done, done])
        ended = await the(engine, taken.definition.id)
        assert ended.head.state is State.FAILED
        assert answers == [Committed(), Committed(), Conflict(ended)]
