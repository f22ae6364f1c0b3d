"""Commands of operators, through `trellis.control`: each works, or is rejected with a reason."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import pytest

from trellis.control import apply, clone
from trellis.core.commands import Cancel, Complete, Dismiss, Fail, ReleaseKey, Replay
from trellis.core.commands import Retry as RetryJob
from trellis.core.job import Failure, JobRecord
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.errors import AdmissionError, CommandRejected, JobNotFound, KeyBusy
from trellis.testing.builders import a_job, a_job_id, a_keyed_job, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept_one,
    claim_one,
    give_up_lost,
    holders,
    journal,
    reap_lapsed,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite

BOOM = Failure("exception", "boom")


async def _ended(engine: Engine, state: State) -> JobRecord:
    policy = Policy(retry=Retry.never())
    taken = await start(engine, await a_session(engine), a_job(policy=policy))
    word = Fail(fence_of(taken), BOOM, retryable=state is State.DEAD)
    ended = await settle(engine, taken, word)
    assert ended.head.state is state
    return ended


class TestOperators(EngineSuite):
    """Commands of operators are decided by the same table as all others."""

    async def test_a_job_is_cancelled(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job())
        after = await apply(engine, record.definition.id, Cancel("no", actor="ann"))
        assert after == await the(engine, record.definition.id)
        assert after.head.state is State.CANCELLED

    async def test_a_failed_job_runs_again(self, engine: Engine, clock: ManualClock) -> None:
        failed = await _ended(engine, State.FAILED)
        clock.advance("1s")
        after = await apply(engine, failed.definition.id, RetryJob("ann"))
        assert (after.head.state, after.head.attempt, after.head.claims) == (State.PENDING, 0, 1)
        assert (after.head.generation, after.head.run_at) == (1, clock.now())
        again = await claim_one(engine, await a_session(engine))
        assert (again.definition, again.head.claims) == (failed.definition, 2)
        assert [event.data for event in await journal(engine, failed)][3] == {"actor": "ann"}

    async def test_a_dead_letter_is_replayed(self, engine: Engine) -> None:
        dead = await _ended(engine, State.DEAD)
        after = await apply(engine, dead.definition.id, Replay())
        assert (after.head.state, after.head.error) == (State.PENDING, None)
        assert len((await engine.claim(await a_session(engine), [], 1)).jobs) == 0
        await claim_one(engine, await a_session(engine))

    async def test_a_dead_letter_is_dismissed_for_good(self, engine: Engine) -> None:
        dead = await _ended(engine, State.DEAD)
        after = await apply(engine, dead.definition.id, Dismiss())
        assert (after.head.state, after.head.error) == (State.DISMISSED, BOOM)
        for verb in (Dismiss(), Replay(), RetryJob(), Cancel()):
            with pytest.raises(CommandRejected):
                await apply(engine, dead.definition.id, verb)

    async def test_a_blocked_key_is_released_to_try_again(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        policy = Policy(on_lost="block", retry=Retry.fixed(0), key=IN_TURN)
        new = a_keyed_job("user/7", IN_TURN, policy=policy)
        await start(engine, await a_session(engine), new)
        clock.advance("30s")
        await reap_lapsed(engine)
        await give_up_lost(engine)
        after = await apply(engine, new.id, ReleaseKey("retry"))
        assert after.head.state is State.RETRY
        assert await holders(engine, "user/7") == [new.id]
        assert (await claim_one(engine, await a_session(engine))).definition.id == new.id

    async def test_a_verb_that_does_not_fit_is_rejected_and_changes_nothing(
        self, engine: Engine
    ) -> None:
        record = await accept_one(engine, a_job())
        for verb in (RetryJob(), Replay(), Dismiss(), ReleaseKey()):
            with pytest.raises(CommandRejected, match=record.definition.id):
                await apply(engine, record.definition.id, verb)
        assert await the(engine, record.definition.id) == record

    async def test_a_clone_is_a_new_job_with_the_same_definition(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}", queued=None)
        old = await accept_one(
            engine, a_keyed_job("user/7", rule, payload='{"a":1}', tags=(("t", "x"),), priority=2)
        )
        new_id = await clone(engine, old.definition.id)
        new = (await the(engine, new_id)).definition
        assert new.clone_of == old.definition.id
        same = old.definition._replace(
            row=new.row, id=new.id, clone_of=new.clone_of, created_at=new.created_at
        )
        assert new == same

    async def test_a_clone_of_nothing_or_into_a_full_key_is_refused(self, engine: Engine) -> None:
        with pytest.raises(JobNotFound):
            await clone(engine, a_job_id())
        busy = await accept_one(engine, a_keyed_job("user/7", KeyPolicy("user/{id}")))
        with pytest.raises(AdmissionError, match="cannot be cloned"):
            await clone(engine, busy.definition.id)

    async def test_a_job_that_is_not_there_is_not_found(self, engine: Engine) -> None:
        missing = a_job_id()
        with pytest.raises(JobNotFound, match=missing):
            await apply(engine, missing, Cancel())

    async def test_a_job_cannot_come_back_to_a_busy_key(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}", 1, 0, "reject")
        taken = await start(engine, await a_session(engine), a_keyed_job("user/7", rule))
        failed = await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        other = await accept_one(engine, a_keyed_job("user/7", rule))
        with pytest.raises(KeyBusy) as raised:
            await apply(engine, failed.definition.id, RetryJob())
        assert raised.value.existing == other.definition.id

    async def test_a_stale_settlement_is_rejected(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job())
        await settle(engine, taken, Cancel(force=True))
        with pytest.raises(CommandRejected):
            await apply(engine, taken.definition.id, Complete(fence_of(taken)))
