"""Changes by operators of jobs that wait or run: queue, priority, due time, attempts."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.admission import Reason
from trellis.core.commands import Adjust, Fail
from trellis.core.durations import SECOND
from trellis.core.job import Failure
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import Coalesced, QueueSettings
from trellis.testing.builders import (
    QUEUE,
    SERVICE,
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
    accept_one,
    claim,
    claim_one,
    ids,
    journal,
    settle,
    start,
)
from trellis.testing.conformance.suite import EngineSuite


class TestAdjust(EngineSuite):
    """An operator moves a live job, or changes its priority, due time and attempts."""

    async def test_a_moved_job_waits_in_its_new_queue(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job(dedupe="nightly"))
        moved = await settle(engine, record, Adjust(queue="other", actor="ann", reason="load"))
        assert (moved.definition.queue, moved.head.version) == ("other", 2)
        last = (await journal(engine, moved))[-1]
        assert (last.kind, last.data) == (
            "adjusted",
            {"queue": "other", "was": {"queue": QUEUE}, "actor": "ann", "reason": "load"},
        )
        await engine.set_queue(QueueSettings(SERVICE, "other", paused=True))
        session = await a_session(engine)
        assert await claim(engine, session) == []
        await engine.set_queue(QueueSettings(SERVICE, "other"))
        assert ids(await claim(engine, session, a_demand(queue="other"))) == ids([moved])

    async def test_a_dedupe_key_holds_on_after_a_change(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job(dedupe="nightly"))
        await settle(engine, record, Adjust(priority=2))
        (answer,) = await engine.create([a_job(dedupe="nightly")])
        assert answer == Coalesced(record.definition.id, Reason.SAME_DEDUPE_KEY)

    async def test_a_raised_priority_takes_effect_at_the_next_claim(self, engine: Engine) -> None:
        first, second = await accept(engine, a_job(), a_job())
        await settle(engine, second, Adjust(priority=1))
        assert ids(await claim(engine, await a_session(engine))) == ids([second, first])

    async def test_a_new_due_time_postpones_and_hurries(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        now, later = await accept(engine, a_job(), a_job(delay=3600 * SECOND))
        await settle(engine, now, Adjust(run_at=clock.now() + 60 * SECOND))
        await settle(engine, later, Adjust(run_at=clock.now()))
        assert ids(await claim(engine, session)) == ids([later])
        clock.advance("1m")
        assert ids(await claim(engine, session)) == ids([now])

    async def test_a_due_time_that_has_passed_postpones_no_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        first = await accept_one(engine, a_job())
        clock.advance("10s")
        second = await accept_one(engine, a_job())
        clock.advance("10s")
        after = await settle(engine, first, Adjust(run_at=clock.now()))
        assert after.head.run_at == first.head.run_at
        journal = await engine.journal(first.definition.id)
        assert dict(journal[-1].data or {})["run_at"] == first.head.run_at
        earlier = clock.now() - 15 * SECOND
        moved = await settle(engine, second, Adjust(run_at=earlier))
        assert moved.head.run_at == earlier
        assert ids(await claim(engine, await a_session(engine))) == ids([first, second])

    async def test_the_attempts_of_a_running_job_can_change(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job(policy=Policy(retry=Retry.never())))
        adjusted = await settle(engine, taken, Adjust(attempts=2))
        assert (adjusted.definition.attempts, adjusted.head.fence) == (2, taken.head.fence)
        after = await settle(engine, adjusted, Fail(fence_of(taken), Failure("exception", "x")))
        assert after.head.state is State.RETRY
        clock.advance("1h")
        declared = a_demand(policy=Policy(retry=Retry.fixed("1s", attempts=9)))
        again = await claim_one(engine, session, declared)
        assert again.definition.policy.retry.attempts == 2

    async def test_a_postponed_job_of_a_key_lets_the_next_one_run(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        first, second = await accept(engine, *(a_keyed_job("k", IN_TURN) for _ in range(2)))
        await settle(engine, first, Adjust(run_at=clock.now() + SECOND))
        session = await a_session(engine)
        (taken,) = await claim(engine, session)
        assert ids([taken]) == ids([second])
        clock.advance("1s")
        assert await claim(engine, session) == []
        await settle(engine, taken, complete(taken))
        assert ids(await claim(engine, session)) == ids([first])

    async def test_a_postponed_job_of_a_strict_key_that_never_ran_blocks_no_other(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        strict = KeyPolicy("k", 1, None, "wait", "job")
        first, second = await accept(engine, *(a_keyed_job("k", strict) for _ in range(2)))
        await settle(engine, first, Adjust(run_at=clock.now() + 3600 * SECOND))
        session = await a_session(engine)
        assert ids(await claim(engine, session)) == ids([second])
