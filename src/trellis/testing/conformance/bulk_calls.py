"""Large calls: hundreds of items at once are treated exactly like single ones."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from typing import Final

from trellis.core.commands import (
    Cancel,
    Claim,
    Command,
    Complete,
    Expire,
    Fail,
    LoseLease,
    Snooze,
)
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobRecord, Prerequisite
from trellis.core.lifecycle import Transition, decide
from trellis.core.policy import Hook, Policy
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import (
    Accepted,
    Committed,
    Conflict,
    JobFilter,
    LogLine,
    Note,
    NoteResult,
    Renewed,
)
from trellis.testing.builders import (
    QUEUE,
    TYPE,
    a_demand,
    a_job,
    a_keyed_job,
    complete,
    fence_of,
)
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept,
    claim,
    holders,
    ids,
    reap_lapsed,
    settle,
    the,
    were_removed,
)
from trellis.testing.conformance.suite import EngineSuite

#: Not a round number, so that an engine that splits batches has a remainder.
MANY: Final = 237
BOOM: Final = Failure("exception", "boom")


async def _take_many(engine: Engine) -> list[JobRecord]:
    await engine.create([a_job(policy=Policy(retry=Retry.fixed("5s"))) for _ in range(MANY)])
    return await claim(engine, await a_session(engine), a_demand(limit=MANY), limit=MANY)


class TestBulkCalls(EngineSuite):
    """The size of a batch does not change the answers for its items."""

    async def test_many_are_created_in_order(self, engine: Engine) -> None:
        jobs = [
            a_job(
                priority=place % 3,
                delay=place % 2,
                tags=tuple((f"tag-{number}", str(place)) for number in range(place % 5)),
                expect="plan" if place % 7 == 0 else None,
            )
            for place in range(MANY)
        ]
        records = await accept(engine, *jobs)
        assert ids(records) == [new.id for new in jobs]
        rows = [record.definition.row for record in records]
        assert rows == sorted(set(rows))
        assert [record.definition.tags for record in records] == [new.tags for new in jobs]

    async def test_many_with_repetitions_are_stored_once_each(self, engine: Engine) -> None:
        jobs = [a_job() for _ in range(MANY)]
        answers = await engine.create([*jobs, *jobs[:50], *jobs[100:]])
        assert len(answers) == MANY + 50 + MANY - 100
        assert all(isinstance(answer, Accepted) for answer in answers)
        assert (await engine.count(JobFilter())).total == MANY

    async def test_many_of_one_key_wait_in_line(self, engine: Engine) -> None:
        jobs = [a_keyed_job("user/7", IN_TURN) for _ in range(MANY)]
        await accept(engine, *jobs)
        assert await holders(engine, "user/7") == [jobs[0].id]
        taken = await claim(engine, await a_session(engine), a_demand(limit=MANY), limit=MANY)
        assert ids(taken) == [jobs[0].id]

    async def test_many_are_claimed_as_the_lifecycle_decides(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        waiting = await accept(engine, *(a_job() for _ in range(MANY)))
        clock.advance("1s")
        taken = await claim(engine, await a_session(engine), a_demand(limit=MANY), limit=MANY)
        for before, after in zip(waiting, taken, strict=True):
            expected = decide(before, Claim(fence_of(after)), clock.now())
            assert isinstance(expected, Transition)
            assert after == (expected.definition, expected.head)
        assert list((await engine.load(ids(taken))).records) == taken
        assert len({fence_of(each).token for each in taken}) == MANY

    async def test_many_are_committed_and_only_the_stale_ones_refused(self, engine: Engine) -> None:
        taken = await _take_many(engine)
        now = await engine.now()
        batch = [_decided(each, Complete(fence_of(each), str(now)), now) for each in taken]
        stale = {
            place: await settle(engine, taken[place], Cancel()) for place in range(0, MANY, 60)
        }
        answers = await engine.commit(batch)
        for place, answer in enumerate(answers):
            assert answer == (Conflict(stale[place]) if place in stale else Committed())
        counts = await engine.count(JobFilter(), "state")
        assert counts.groups == {"active": len(stale), "completed": MANY - len(stale)}

    async def test_many_of_every_kind_are_committed_together(self, engine: Engine) -> None:
        taken = await _take_many(engine)
        now = await engine.now()
        batch = [_decided(each, _word(place, each), now) for place, each in enumerate(taken)]
        assert await engine.commit(batch) == [Committed()] * MANY
        loaded = (await engine.load(ids(taken))).records
        assert [each.head for each in batch] == [each and each.head for each in loaded]
        assert await engine.commit(batch) == [Conflict(each) for each in loaded]

    async def test_many_notes_are_kept_in_order(self, engine: Engine) -> None:
        taken = (await _take_many(engine))[0]
        row, fence = taken.definition.row, fence_of(taken)
        notes = [Note(row, 1, fence, LogLine("info", str(place))) for place in range(MANY)]
        assert await engine.note(notes) == [NoteResult.NOTED] * MANY
        lines = await engine.logs(taken.definition.id)
        assert [line.message for line in lines] == [str(place) for place in range(MANY)]

    async def test_a_session_that_holds_many_is_renewed(self, engine: Engine) -> None:
        taken = await _take_many(engine)
        session = fence_of(taken[0]).session
        asked = [await settle(engine, each, Cancel()) for each in taken[::50]]
        for each in taken[1::50]:
            await settle(engine, each, complete(each))
        answer = await engine.renew(session, [fence_of(each) for each in taken[:-1]])
        assert isinstance(answer, Renewed)
        assert answer.asked == tuple(fence_of(each) for each in asked)
        assert answer.lost == tuple(fence_of(each) for each in taken[1::50])
        assert answer.unknown == (taken[-1],)

    async def test_many_lost_attempts_are_given_up_together(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        taken = await _take_many(engine)
        clock.advance("30s")
        await reap_lapsed(engine)
        lost = await engine.due("lost", 1000)
        assert [job.record for job in lost.jobs] == taken
        batch = [_decided(each, LoseLease(fence_of(each)), lost.now) for each in taken]
        assert await engine.commit(batch) == [Committed()] * MANY
        clock.advance("5s")
        assert await engine.promote(1000) == MANY
        again = await claim(engine, await a_session(engine), a_demand(limit=MANY), limit=MANY)
        assert ids(again) == ids(taken)

    async def test_many_are_pruned_together(self, engine: Engine, clock: ManualClock) -> None:
        taken = await _take_many(engine)
        now = await engine.now()
        await engine.commit([_decided(each, complete(each), now) for each in taken])
        clock.advance("7d")
        assert await engine.prune(100) == 100
        assert await engine.prune(1000) == MANY - 100
        assert await were_removed(engine, *ids(taken)) == [True] * MANY
        assert (await engine.find(JobFilter())).jobs == ()

    async def test_what_follows_a_decision_does_not_overtake_another_one(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """An end of the first job alone would cancel the second one."""
        hooked = Policy(hooks=(Hook("finished", TYPE, QUEUE),))
        (first,) = await accept(engine, a_job(policy=hooked, deadline_in=SECOND))
        after = (Prerequisite(first.definition.id, "success"),)
        second = a_keyed_job("u", IN_TURN, deadline_in=SECOND, after=after)
        records = [first, *await accept(engine, second)]
        clock.advance("1s")
        now = await engine.now()
        ends = [_decided(each, Expire(), now) for each in records]
        assert await engine.commit(ends) == [Committed()] * 2
        assert (await the(engine, second.id)).head.state is State.EXPIRED

    async def test_of_two_ends_of_a_job_with_hooks_the_first_counts(self, engine: Engine) -> None:
        hooked = Policy(hooks=(Hook("finished", TYPE, QUEUE),))
        (job,) = await accept(engine, a_job(policy=hooked))
        (taken,) = await claim(engine, await a_session(engine))
        now = await engine.now()
        words = (Fail(fence_of(taken), BOOM, retryable=False), Snooze(fence_of(taken), SECOND))
        first, second = await engine.commit([_decided(taken, word, now) for word in words])
        assert first == Committed()
        assert isinstance(second, Conflict)
        assert (await the(engine, job.definition.id)).head.state is State.FAILED


def _word(place: int, taken: JobRecord) -> Command:
    fence = fence_of(taken)
    words: list[Command] = [
        Complete(fence, "1"),
        Fail(fence, BOOM),
        Complete(fence, None, item_errors=1),
        Fail(fence, BOOM, retryable=False),
        Snooze(fence, SECOND),
        Cancel(),
        Cancel(force=True),
    ]
    return words[place % len(words)]


def _decided(record: JobRecord, command: Command, now: int) -> Transition:
    decision = decide(record, command, now)
    assert isinstance(decision, Transition)
    return decision
