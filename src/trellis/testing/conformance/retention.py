"""Retention: ended jobs and sessions are removed after a time; removals of jobs are recorded."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.commands import Cancel, Complete, Dismiss, Fail, Replay
from trellis.core.commands import Retry as RetryJob
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobId
from trellis.core.policy import KeyPolicy, Policy, Retention
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import (
    KEEP_SESSIONS,
    Counts,
    JobFilter,
    LogLine,
    Note,
    Progress,
    SessionLost,
)
from trellis.testing.builders import a_job, a_job_id, a_keyed_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    claim,
    reap_lapsed,
    settle,
    start,
    the,
    were_removed,
)
from trellis.testing.conformance.suite import EngineSuite

BOOM = Failure("exception", "boom")
#: A few seconds per state, different for each.
SHORT = Policy(
    retry=Retry.never(),
    retention=Retention(
        completed=10 * SECOND, failed=20 * SECOND, dead=30 * SECOND, other=40 * SECOND
    ),
)


async def _is_there(engine: Engine, *jobs: JobId) -> list[bool]:
    loaded = await engine.load(jobs)
    return [record is not None for record in loaded.records]


class TestRetention(EngineSuite):
    """A job is kept as long as the policy of its state says; the next prune removes it."""

    async def test_each_state_is_kept_as_long_as_its_policy_says(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "1h")
        done, partly, failed, dead, cancelled = [
            await start(engine, session, a_job(policy=SHORT)) for _ in range(5)
        ]
        await settle(engine, done, Complete(fence_of(done)))
        await settle(engine, partly, Complete(fence_of(partly), item_errors=1))
        await settle(engine, failed, Fail(fence_of(failed), BOOM, retryable=False))
        await settle(engine, dead, Fail(fence_of(dead), BOOM))
        await settle(engine, cancelled, Cancel(force=True))
        everyone = [each.definition.id for each in (done, partly, failed, dead, cancelled)]
        for removed, count in ((0, 0), (2, 2), (3, 1), (4, 1), (5, 1)):
            assert await engine.prune(100) == count
            gone = [True] * removed + [False] * (5 - removed)
            assert await were_removed(engine, *everyone) == gone
            assert await _is_there(engine, *everyone) == [not each for each in gone]
            clock.advance_micros(10 * SECOND - 1)
            assert await engine.prune(100) == 0
            clock.advance_micros(1)

    async def test_a_live_job_is_kept_for_ever(self, engine: Engine, clock: ManualClock) -> None:
        session = await a_session(engine, "1h")
        await start(engine, session, a_job(policy=SHORT))
        taken = await start(engine, session, a_job())
        await settle(engine, taken, Fail(fence_of(taken), BOOM))
        await accept_one(engine, a_job(delay=SECOND))
        clock.advance("3650d")
        assert await engine.prune(100) == 0

    async def test_nothing_of_a_removed_job_is_left(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        taken = await start(engine, await a_session(engine), a_job(policy=SHORT))
        row, fence = taken.definition.row, fence_of(taken)
        bodies = (LogLine("info", "x"), Progress(1))
        await engine.note([Note(row, 1, fence, body) for body in bodies])
        await settle(engine, taken, complete(taken))
        clock.advance("10s")
        assert await engine.prune(100) == 1
        gone = taken.definition.id
        assert await engine.journal(gone) == []
        assert await engine.outcomes(gone) == []
        assert await engine.logs(gone) == []
        assert await engine.activity(gone) is None
        assert (await engine.find(JobFilter())).jobs == ()
        assert await engine.count(JobFilter(), "state") == Counts(clock.now(), {})

    async def test_a_revived_job_is_kept(self, engine: Engine, clock: ManualClock) -> None:
        session = await a_session(engine, "1h")
        taken = await start(engine, session, a_job(policy=SHORT))
        failed = await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        revived = await settle(engine, failed, RetryJob())
        clock.advance("1d")
        assert await engine.prune(100) == 0
        assert await the(engine, revived.definition.id) == revived
        (again,) = await claim(engine, session)
        clock.advance("1d")
        assert await engine.prune(100) == 0
        await settle(engine, again, complete(again))
        clock.advance_micros(10 * SECOND - 1)
        assert await engine.prune(100) == 0
        clock.advance_micros(1)
        assert await engine.prune(100) == 1

    async def test_a_replayed_dead_letter_is_kept(self, engine: Engine, clock: ManualClock) -> None:
        taken = await start(engine, await a_session(engine), a_job(policy=SHORT))
        dead = await settle(engine, taken, Fail(fence_of(taken), BOOM))
        await settle(engine, dead, Replay())
        clock.advance("1d")
        assert await engine.prune(100) == 0

    async def test_a_dismissed_letter_is_kept_from_its_dismissal(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        taken = await start(engine, await a_session(engine), a_job(policy=SHORT))
        dead = await settle(engine, taken, Fail(fence_of(taken), BOOM))
        clock.advance("29s")
        after = await settle(engine, dead, Dismiss())
        assert after.head.state is State.DISMISSED
        clock.advance_micros(40 * SECOND - 1)
        assert await engine.prune(100) == 0
        clock.advance_micros(1)
        assert await engine.prune(100) == 1

    async def test_pruning_removes_no_more_than_asked_the_longest_overdue_first(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        records = await accept(engine, *(a_job(policy=SHORT) for _ in range(3)))
        for record in reversed(records):
            await settle(engine, record, Cancel())
            clock.advance("1s")
        clock.advance("40s")
        everyone = [each.definition.id for each in records]
        assert await engine.prune(1) == 1
        assert await _is_there(engine, *everyone) == [True, True, False]
        assert await engine.prune(100) == 2

    async def test_only_what_retention_removed_is_remembered_as_removed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        record = await accept_one(engine, a_job(policy=SHORT))
        assert await were_removed(engine, record.definition.id, a_job_id()) == [False, False]
        await settle(engine, record, Cancel())
        clock.advance("40s")
        await engine.prune(100)
        assert await were_removed(engine, a_job_id(), record.definition.id) == [False, True]
        assert await were_removed(engine) == []

    async def test_a_key_goes_on_after_its_old_jobs_are_removed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        rule = KeyPolicy("user/{id}", 1, 0, "reject")
        record = await accept_one(engine, a_keyed_job("user/7", rule, policy=SHORT))
        await settle(engine, record, Cancel())
        clock.advance("40s")
        assert await engine.prune(100) == 1
        await accept_one(engine, a_keyed_job("user/7", rule))
        assert len(await claim(engine, await a_session(engine))) == 1


class TestSessionRetention(EngineSuite):
    """An ended session is kept for a day."""

    async def test_a_session_that_is_over_is_removed_after_a_day(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        closed, lapsed = await a_session(engine), await a_session(engine, "30s")
        await engine.close_session(closed)
        clock.advance("30s")
        assert await reap_lapsed(engine) == [lapsed]
        clock.advance_micros(KEEP_SESSIONS - 30 * SECOND)
        assert await engine.prune(100) == 1
        assert [each.id for each in await engine.sessions()] == [lapsed]
        clock.advance("30s")
        assert await engine.prune(100) == 1
        assert await engine.sessions() == []
        assert isinstance(await engine.renew(closed, []), SessionLost)

    async def test_it_is_kept_to_the_last_moment(self, engine: Engine, clock: ManualClock) -> None:
        await engine.close_session(await a_session(engine))
        clock.advance_micros(KEEP_SESSIONS - 1)
        assert await engine.prune(100) == 0
        clock.advance_micros(1)
        assert await engine.prune(100) == 1
        assert await engine.prune(100) == 0

    async def test_a_session_that_is_not_over_is_kept_however_long_it_is_silent(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        clock.advance("30d")
        assert await engine.prune(100) == 0
        assert [each.id for each in await engine.sessions()] == [session]

    async def test_jobs_and_sessions_together_are_no_more_than_asked(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        for record in await accept(engine, *(a_job(policy=SHORT) for _ in range(2))):
            await settle(engine, record, Cancel())
        sessions = [await a_session(engine) for _ in range(3)]
        for session in reversed(sessions):
            await engine.close_session(session)
            clock.advance("1s")
        clock.advance("1d")
        assert await engine.prune(1) == 1
        assert [each.id for each in await engine.sessions()] == sessions[::-1]
        assert await engine.prune(2) == 2
        assert [each.id for each in await engine.sessions()] == [sessions[1], sessions[0]]
        assert await engine.prune(100) == 2
        assert await engine.sessions() == []

    async def test_what_a_removed_session_left_behind_is_still_lost(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        await engine.close_session(session)
        clock.advance("1d")
        assert await engine.prune(100) == 1
        lost = (await engine.due("lost", 10)).jobs
        assert [job.record.definition.id for job in lost] == [taken.definition.id]

    async def test_a_lock_that_lingers_longer_than_its_session_is_kept_still_counts(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "10d")
        taken = await start(engine, session, a_job())
        await engine.take_lock("table", *fence_of(taken))
        await settle(engine, taken, Cancel(force=True))
        await engine.close_session(session)
        clock.advance("1d")
        assert await engine.prune(100) == 1
        (lock,) = await engine.locks()
        assert (lock.name, lock.worker, lock.job_id) == ("table", "", taken.definition.id)
