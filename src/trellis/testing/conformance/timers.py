"""Timers: deadlines, timeouts, silent attempts, and cancels whose grace has passed."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.commands import Cancel, Fail, Release
from trellis.core.commands import Retry as RetryJob
from trellis.core.durations import SECOND, micros
from trellis.core.job import Failure
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.states import State
from trellis.core.timers import TIMEOUT_SLACK, look_at
from trellis.engines.port import Engine
from trellis.engines.values import Heartbeat, LogLine, Note
from trellis.testing.builders import a_job, a_keyed_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    claim,
    give_up_lost,
    head,
    ids,
    kinds,
    reap_lapsed,
    renew,
    settle,
    settle_overdue,
    start,
)
from trellis.testing.conformance.suite import EngineSuite

LONG = "9999d"


async def _due(engine: Engine, limit: int = 100) -> list[str]:
    return [job.record.definition.id for job in (await engine.due("jobs", limit)).jobs]


class TestTimers(EngineSuite):
    """A job is due exactly from its moment until it is settled."""

    async def test_a_waiting_job_is_due_at_its_deadline(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        record = await accept_one(engine, a_job(deadline_in=10 * SECOND))
        clock.advance_micros(10 * SECOND - 1)
        assert await _due(engine) == []
        clock.advance_micros(1)
        due = await engine.due("jobs", 10)
        assert (due.now, due.sessions) == (clock.now(), ())
        assert [(job.record, job.seen_at) for job in due.jobs] == [(record, None)]

    async def test_an_expired_job_is_settled_and_due_no_more(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        waiting = await accept_one(engine, a_job(deadline_in=SECOND, delay=9 * SECOND))
        session = await a_session(engine)
        running = await start(engine, session, a_job(deadline_in=SECOND))
        clock.advance("1s")
        settled = await settle_overdue(engine)
        assert {each.head.state for each in settled} == {State.EXPIRED}
        assert ids(settled) == ids([waiting, running])
        assert await _due(engine) == []
        assert await claim(engine, session) == []

    async def test_jobs_are_due_oldest_moment_first_and_no_more_than_asked(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        jobs = [a_job(deadline_in=seconds * SECOND) for seconds in (3, 1, 2, 1)]
        await accept(engine, *jobs)
        clock.advance("5s")
        order = [jobs[place].id for place in (1, 3, 2, 0)]
        assert await _due(engine) == order
        assert await _due(engine, limit=2) == order[:2]

    async def test_an_attempt_out_of_time_is_due_after_its_slack(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, LONG)
        await start(engine, session, a_job(policy=Policy(timeout=60 * SECOND)))
        clock.advance_micros(60 * SECOND + TIMEOUT_SLACK - 1)
        assert await _due(engine) == []
        clock.advance_micros(1)
        (after,) = await settle_overdue(engine)
        assert after.head.state is State.RETRY
        assert after.head.error is not None
        assert after.head.error.code == "timeout"
        assert await _due(engine) == []

    async def test_a_settled_attempt_is_never_due(self, engine: Engine, clock: ManualClock) -> None:
        session = await a_session(engine, LONG)
        policy = Policy(timeout=SECOND, activity_timeout=SECOND)
        done = await start(engine, session, a_job(policy=policy, deadline_in=SECOND))
        await settle(engine, done, complete(done))
        back = await start(engine, session, a_job(policy=policy))
        await settle(engine, back, Release(fence_of(back)))
        clock.advance("1d")
        assert await _due(engine) == []

    async def test_a_new_attempt_has_its_whole_time_again(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, LONG)
        policy = Policy(timeout=60 * SECOND)
        taken = await start(engine, session, a_job(policy=policy))
        clock.advance("50s")
        await settle(engine, taken, Release(fence_of(taken)))
        (again,) = await claim(engine, session)
        clock.advance("50s")
        assert await _due(engine) == []
        assert look_at(*again) == clock.now() + 10 * SECOND + TIMEOUT_SLACK
        clock.advance("15s")
        assert await _due(engine) == ids([again])

    async def test_a_silent_attempt_is_due_and_its_job_tried_again(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, LONG)
        await start(engine, session, a_job(policy=Policy(activity_timeout=10 * SECOND)))
        clock.advance("10s")
        (after,) = await settle_overdue(engine)
        assert after.head.state is State.RETRY
        assert after.head.error is not None
        assert after.head.error.code == "lease_lost"

    async def test_every_sign_of_life_puts_silence_off(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, LONG)
        taken = await start(engine, session, a_job(policy=Policy(activity_timeout=10 * SECOND)))
        row, fence = taken.definition.row, fence_of(taken)
        for body in (Heartbeat(), LogLine("info", "still here"), Heartbeat()):
            clock.advance("9s")
            assert await _due(engine) == []
            await engine.note([Note(row, 1, fence, body)])
        seen = clock.now()
        clock.advance_micros(10 * SECOND - 1)
        assert await _due(engine) == []
        clock.advance_micros(1)
        (job,) = (await engine.due("jobs", 10)).jobs
        assert job.seen_at == seen

    async def test_a_sign_of_life_of_an_old_attempt_does_not_count_for_the_new_one(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, LONG)
        taken = await start(engine, session, a_job(policy=Policy(activity_timeout=10 * SECOND)))
        await engine.note([Note(taken.definition.row, 1, fence_of(taken), Heartbeat())])
        clock.advance("5s")
        await settle(engine, taken, Release(fence_of(taken)))
        (again,) = await claim(engine, session)
        clock.advance_micros(10 * SECOND - 1)
        assert await _due(engine) == []
        clock.advance_micros(1)
        assert await _due(engine) == ids([again])

    async def test_an_asked_cancel_keeps_the_last_sign_of_life(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, LONG)
        policy = Policy(activity_timeout=10 * SECOND, cancel_grace=micros("1h"))
        taken = await start(engine, session, a_job(policy=policy))
        clock.advance("9s")
        await engine.note([Note(taken.definition.row, 1, fence_of(taken), Heartbeat())])
        await settle(engine, taken, Cancel())
        clock.advance("9s")
        assert await _due(engine) == []
        clock.advance("1s")
        assert await _due(engine) == ids([taken])

    async def test_a_cancel_not_heeded_is_forced_after_its_grace(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, LONG)
        taken = await start(engine, session, a_job(policy=Policy(cancel_grace=30 * SECOND)))
        clock.advance("5s")
        await settle(engine, taken, Cancel())
        clock.advance_micros(30 * SECOND - 1)
        assert await _due(engine) == []
        clock.advance_micros(1)
        (after,) = await settle_overdue(engine)
        assert after.head.state is State.CANCELLED
        assert (await renew(engine, session, taken)).lost == (fence_of(taken),)

    async def test_a_blocked_attempt_is_due_at_its_deadline_alone(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        policy = Policy(
            timeout=SECOND, activity_timeout=SECOND, on_lost="block", key=KeyPolicy("user/{id}")
        )
        new = a_job(policy=policy, key="user/1", deadline_in=micros("1h"))
        taken = await start(engine, session, new)
        clock.advance("30s")
        await reap_lapsed(engine)
        (blocked,) = await give_up_lost(engine)
        assert blocked.head.blocked
        clock.advance("59m")
        assert await _due(engine) == []
        clock.advance("1m")
        (after,) = await settle_overdue(engine)
        assert after.head.state is State.EXPIRED
        assert await kinds(engine, taken) == ["created", "started", "blocked", "expired"]

    async def test_a_revived_job_is_due_at_its_deadline_still(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, LONG)
        taken = await start(engine, session, a_job(deadline_in=60 * SECOND))
        boom = Fail(fence_of(taken), Failure("exception", "x"), retryable=False)
        failed = await settle(engine, taken, boom)
        revived = await settle(engine, failed, RetryJob())
        clock.advance("60s")
        assert await _due(engine) == ids([revived])
        await settle_overdue(engine)
        assert (await head(engine, revived)).state is State.EXPIRED

    async def test_a_job_waiting_for_its_key_expires_too(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine, LONG)
        rule = KeyPolicy("user/{id}", 1, None, "wait")
        await start(engine, session, a_keyed_job("user/1", rule))
        waiting = await accept_one(engine, a_keyed_job("user/1", rule, deadline_in=SECOND))
        clock.advance("1s")
        assert ids(await settle_overdue(engine)) == ids([waiting])
