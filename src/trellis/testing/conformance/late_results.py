"""Late results: refused, and journalled without changing the head."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from collections.abc import Callable

from trellis.control import Applied, apply_all
from trellis.core.commands import Cancel, Command, Complete, Fail, Release, Snooze
from trellis.core.durations import SECOND
from trellis.core.events import Event, EventKind
from trellis.core.fold import fold
from trellis.core.job import Failure, Fence
from trellis.core.lifecycle import Stale
from trellis.core.policy import Policy
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import LateResult, Note, NoteResult
from trellis.testing.builders import a_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    claim_one,
    decided,
    give_up_lost,
    head,
    journal,
    kinds,
    reap_lapsed,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite

LATE = "staleCompletionIgnored"
BOOM = Failure("exception", "boom")
WORDS: tuple[Callable[[Fence], Command], ...] = (
    lambda fence: Complete(fence, "7"),
    lambda fence: Complete(fence, "7", 2),
    lambda fence: Fail(fence, BOOM, roll=0.5),
    lambda fence: Fail(fence, BOOM, retryable=False),
    lambda fence: Snooze(fence, 60 * SECOND),
)


class TestLateResults(EngineSuite):
    """The late result of an old attempt is refused, and the journal shows it."""

    async def test_a_late_result_leaves_an_event_of_version_0(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        old = await start(engine, session, a_job())
        await settle(engine, old, Release(fence_of(old)))
        new = await claim_one(engine, session)
        clock.advance("4s")
        note = Note(old.definition.row, 1, fence_of(old), LateResult("Complete", "came too late"))
        assert await engine.note([note]) == [NoteResult.NOTED]
        data = {"command": "Complete", "detail": "came too late"}
        kind = EventKind.STALE_COMPLETION_IGNORED
        expected = Event(kind, 0, State.ACTIVE, clock.now(), 1, fence_of(old), data)
        events = await journal(engine, new)
        assert events[-1] == expected
        assert fold(events) == new.head == await head(engine, new)

    async def test_a_late_result_is_noted_after_the_end_too(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        done = await settle(engine, taken, Cancel(force=True))
        note = Note(taken.definition.row, 1, fence_of(taken), LateResult("Complete"))
        assert await engine.note([note, note]) == [NoteResult.NOTED] * 2
        assert await kinds(engine, taken) == ["created", "started", "cancelled", LATE, LATE]
        assert await the(engine, taken.definition.id) == done
        assert await engine.activity(taken.definition.id) is None

    async def test_the_attempt_that_holds_the_job_is_not_late(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        note = Note(taken.definition.row, 1, fence_of(taken), LateResult("Complete"))
        assert await engine.note([note]) == [NoteResult.STALE]
        assert await kinds(engine, taken) == ["created", "started"]

    async def test_a_late_result_of_a_job_that_is_gone_is_dropped(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        await settle(engine, taken, complete(taken))
        clock.advance("8d")
        assert await engine.prune(10) == 1
        note = Note(taken.definition.row, 1, fence_of(taken), LateResult("Complete"))
        assert await engine.note([note]) == [NoteResult.STALE]
        assert await engine.journal(taken.definition.id) == []

    async def test_the_journal_keeps_later_transitions_after_a_late_result(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        old = await start(engine, session, a_job())
        await settle(engine, old, Release(fence_of(old)))
        new = await claim_one(engine, session)
        await engine.note([Note(old.definition.row, 1, fence_of(old), LateResult("Fail"))])
        done = await settle(engine, new, complete(new))
        events = await journal(engine, new)
        assert [event.version for event in events] == [1, 2, 3, 4, 0, 5]
        assert fold(events) == done.head


class TestLostReplies(EngineSuite):
    """A settlement repeated after a lost reply gets the answer of the first."""

    async def test_a_repeated_settlement_counts_as_applied(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        policy = Policy(retry=Retry.fixed("1m"))
        for word in WORDS:
            taken = await start(engine, session, a_job(policy=policy))
            command = word(fence_of(taken))
            stored = await settle(engine, taken, command)
            clock.advance("1s")
            (answer,) = await apply_all(engine, [(taken, command)], await engine.now())
            assert isinstance(answer, Applied)
            assert answer.record.head.state is stored.head.state
            assert await the(engine, taken.definition.id) == stored
            assert LATE not in await kinds(engine, taken)

    async def test_a_repeated_settlement_counts_though_the_job_went_on(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        await settle(engine, taken, Release(fence_of(taken)))
        await claim_one(engine, session)
        release = Release(fence_of(taken))
        (answer,) = await apply_all(engine, [(taken, release)], await engine.now())
        assert isinstance(answer, Applied)
        assert await kinds(engine, taken) == ["created", "started", "retry", "started"]

    async def test_a_result_that_comes_too_late_is_stale_and_noted(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        old = await start(
            engine, await a_session(engine), a_job(policy=Policy(retry=Retry.fixed(0)))
        )
        clock.advance("30s")
        await reap_lapsed(engine)
        await give_up_lost(engine)
        new = await claim_one(engine, await a_session(engine))
        (answer,) = await apply_all(engine, [(old, complete(old))], clock.now())
        assert answer == Stale(new.head)
        events = await journal(engine, new)
        assert events[-1].kind == LATE
        assert (events[-1].version, events[-1].fence) == (0, fence_of(old))

    async def test_another_word_of_the_same_attempt_is_no_lost_reply(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        done = await settle(engine, taken, complete(taken))
        other = Fail(fence_of(taken), BOOM, retryable=False)
        (answer,) = await apply_all(engine, [(taken, other)], await engine.now())
        assert answer == Stale(done.head)
        assert (await kinds(engine, taken))[-1] == LATE

    async def test_a_settlement_that_met_an_asked_cancel_is_decided_again(
        self, engine: Engine
    ) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        await settle(engine, taken, Cancel())
        word = Fail(fence_of(taken), BOOM)
        (answer,) = await apply_all(engine, [(taken, word)], await engine.now())
        assert isinstance(answer, Applied)
        assert answer.record == await the(engine, taken.definition.id)
        assert answer.record.head.state is State.CANCELLED

    async def test_many_are_applied_each_on_its_own(self, engine: Engine) -> None:
        session = await a_session(engine)
        one, two, three = [await start(engine, session, a_job()) for _ in range(3)]
        await settle(engine, two, Cancel(force=True))
        stored = await decided(engine, three, complete(three))
        await engine.commit([stored])
        asked = [(each, complete(each)) for each in (one, two, three)]
        answers = await apply_all(engine, asked, await engine.now())
        assert [type(answer) for answer in answers] == [Applied, Stale, Applied]
