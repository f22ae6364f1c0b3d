"""Fences: an attempt that has ended cannot change anything."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.commands import Cancel, Command, Crash, Fail, LoseLease, Release, Snooze
from trellis.core.commands import Retry as RetryJob
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobRecord
from trellis.core.lifecycle import Stale, decide
from trellis.core.policy import Policy
from trellis.core.retry import Retry
from trellis.engines.port import Engine
from trellis.engines.values import (
    Begun,
    Conflict,
    Heartbeat,
    Item,
    LogLine,
    Note,
    NoteBody,
    NoteResult,
    Phase,
    Progress,
)
from trellis.testing.builders import a_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    claim_one,
    decided,
    give_up_lost,
    journal,
    reap_lapsed,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite

BOOM = Failure("exception", "boom")
NOTES: tuple[NoteBody, ...] = (
    Begun(1),
    Heartbeat(),
    Progress(1, 2),
    Phase("late"),
    Item("a", "failed"),
    LogLine("info", "too late"),
)


def every_word_of(record: JobRecord) -> list[Command]:
    """Return every command by which the attempt of this job could settle it."""
    fence = fence_of(record)
    return [
        complete(record),
        complete(record, item_errors=1),
        Fail(fence, BOOM),
        Fail(fence, BOOM, retryable=False),
        Snooze(fence, SECOND),
        Release(fence),
        LoseLease(fence),
        Crash(fence, "signal 9"),
    ]


class TestFences(EngineSuite):
    """An attempt that lost its job cannot write to it any more."""

    async def test_an_old_attempt_settles_nothing_after_a_new_claim(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        old = await start(
            engine, await a_session(engine), a_job(policy=Policy(retry=Retry.fixed(0)))
        )
        transitions = [await decided(engine, old, word) for word in every_word_of(old)]
        clock.advance("31s")
        await reap_lapsed(engine)
        await give_up_lost(engine)
        new = await claim_one(engine, await a_session(engine))
        before = await journal(engine, new)
        answers = await engine.commit(transitions)
        assert answers == [Conflict(new)] * len(transitions)
        for transition in transitions:
            assert await engine.commit([transition]) == [Conflict(new)]
            assert decide(new, transition.command, clock.now()) == Stale(new.head)
        assert await the(engine, new.definition.id) == new
        assert await journal(engine, new) == before

    async def test_an_attempt_settles_nothing_after_its_job_has_ended(self, engine: Engine) -> None:
        old = await start(engine, await a_session(engine), a_job())
        transitions = [await decided(engine, old, word) for word in every_word_of(old)]
        done = await settle(engine, old, Cancel(force=True))
        for transition in transitions:
            assert await engine.commit([transition]) == [Conflict(done)]

    async def test_an_old_attempt_of_the_same_session_is_as_stale(self, engine: Engine) -> None:
        session = await a_session(engine)
        old = await start(engine, session, a_job(policy=Policy(retry=Retry.fixed(0))))
        late = await decided(engine, old, complete(old))
        await settle(engine, old, Snooze(fence_of(old), 0))
        new = await claim_one(engine, session)
        assert fence_of(new).session == fence_of(old).session
        assert await engine.commit([late]) == [Conflict(new)]

    async def test_an_old_attempt_notes_nothing(self, engine: Engine) -> None:
        session = await a_session(engine)
        old = await start(engine, session, a_job())
        await settle(engine, old, Snooze(fence_of(old), 0))
        new = await claim_one(engine, session)
        notes = [Note(old.definition.row, 1, fence_of(old), body) for body in NOTES]
        assert await engine.note(notes) == [NoteResult.STALE] * len(NOTES)
        assert await engine.activity(new.definition.id) is None
        assert await engine.items(new.definition.id) == []
        assert await engine.logs(new.definition.id) == []

    async def test_nothing_is_noted_after_the_end(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        await settle(engine, taken, complete(taken))
        notes = [Note(taken.definition.row, 1, fence_of(taken), body) for body in NOTES]
        assert await engine.note(notes) == [NoteResult.STALE] * len(NOTES)
        assert await engine.logs(taken.definition.id) == []

    async def test_a_fence_is_good_for_its_own_job_only(self, engine: Engine) -> None:
        session = await a_session(engine)
        one = await start(engine, session, a_job())
        two = await start(engine, session, a_job())
        mixed = [Note(one.definition.row, 1, fence_of(two), body) for body in NOTES]
        assert await engine.note(mixed) == [NoteResult.STALE] * len(NOTES)
        swapped = (await decided(engine, one, complete(one)))._replace(before=two.head)
        assert await engine.commit([swapped]) == [Conflict(one)]

    async def test_a_revived_job_knows_no_old_fence(self, engine: Engine) -> None:
        session = await a_session(engine)
        old = await start(engine, session, a_job())
        late = await decided(engine, old, complete(old))
        failed = await settle(engine, old, Fail(fence_of(old), BOOM, retryable=False))
        revived = await settle(engine, failed, RetryJob())
        assert await engine.commit([late]) == [Conflict(revived)]
        again = await claim_one(engine, session)
        assert await engine.commit([late]) == [Conflict(again)]
        assert fence_of(again) != fence_of(old)
