"""Policies in force: those of the worker that claims, under what the creator asked for."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.commands import Fail, Replay
from trellis.core.durations import SECOND, micros
from trellis.core.job import Failure, JobRecord
from trellis.core.policy import KeyPolicy, Policy, Retention
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.core.timers import TIMEOUT_SLACK
from trellis.engines.port import Engine
from trellis.testing.builders import a_demand, a_job, a_keyed_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept_one,
    claim,
    claim_one,
    settle,
    settle_overdue,
    the,
)
from trellis.testing.conformance.suite import EngineSuite

_OLD = Policy(retry=Retry.fixed("1s", attempts=2), timeout=SECOND)
_NEW = Policy(
    retry=Retry.fixed("5s", attempts=9),
    timeout=60 * SECOND,
    activity_timeout=30 * SECOND,
    dead_letters=False,
    retention=Retention(completed=micros("1h")),
)
_FAILURE = Failure("exception", "x")


async def _fail(engine: Engine, record: JobRecord) -> JobRecord:
    await settle(engine, record, Fail(fence_of(record), _FAILURE))
    return await the(engine, record.definition.id)


class TestPolicyInForce(EngineSuite):
    """A claim puts the policy that its worker declares in force, and the store remembers it."""

    async def test_before_the_first_claim_the_policy_at_creation_holds(
        self, engine: Engine
    ) -> None:
        assert (await accept_one(engine, a_job(policy=_OLD))).definition.policy == _OLD

    async def test_a_claim_puts_the_declared_policy_in_force(self, engine: Engine) -> None:
        new = a_job(policy=_OLD)
        await accept_one(engine, new)
        taken = await claim_one(engine, await a_session(engine), a_demand(policy=_NEW))
        assert taken.definition.policy == _NEW
        assert await the(engine, new.id) == taken

    async def test_a_claim_that_declares_nothing_leaves_the_policy_as_it_is(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        await accept_one(engine, a_job(policy=_OLD))
        taken = await claim_one(engine, session, a_demand(policy=_NEW))
        await _fail(engine, taken)
        clock.advance("5s")
        assert (await claim_one(engine, session)).definition.policy == _NEW

    async def test_maintenance_looks_when_the_policy_in_force_says(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        new = a_job(policy=_OLD)
        await accept_one(engine, new)
        silent = Policy(timeout=20 * SECOND, retry=Retry.fixed("7s"))
        await claim_one(engine, await a_session(engine), a_demand(policy=silent))
        clock.advance_micros(SECOND + TIMEOUT_SLACK)
        assert (await engine.due("jobs", 10)).jobs == ()
        clock.advance("19s")
        await settle_overdue(engine)
        after = await the(engine, new.id)
        assert (after.head.state, after.head.run_at) == (State.RETRY, clock.now() + 7 * SECOND)

    async def test_retries_follow_the_policy_in_force(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        await accept_one(engine, a_job(policy=_OLD))
        first = await _fail(engine, await claim_one(engine, session, a_demand(policy=_OLD)))
        assert first.head.run_at == clock.now() + SECOND
        clock.advance("1s")
        second = await _fail(engine, await claim_one(engine, session, a_demand(policy=_NEW)))
        assert (second.head.state, second.head.attempt) == (State.RETRY, 2)
        assert second.head.run_at == clock.now() + 5 * SECOND

    async def test_a_replayed_dead_letter_runs_under_the_policy_of_its_next_worker(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        await accept_one(engine, a_job(policy=Policy(retry=Retry.never())))
        once = a_demand(policy=Policy(retry=Retry.never(), timeout=SECOND))
        dead = await _fail(engine, await claim_one(engine, session, once))
        assert dead.head.state is State.DEAD
        assert dead.definition.policy == once.policies[0]
        await settle(engine, dead, Replay())
        revived = await the(engine, dead.definition.id)
        assert revived.definition.policy == once.policies[0]
        taken = await claim_one(engine, session, a_demand(policy=_NEW))
        assert taken.definition.policy == _NEW
        assert (await _fail(engine, taken)).head.state is State.RETRY
        clock.advance("1m")

    async def test_an_ended_job_keeps_the_policy_it_ended_under(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        many = [a_job(policy=_OLD) for _ in range(3)]
        for new in many:
            await accept_one(engine, new)
        taken = await claim(engine, session, a_demand(policy=_NEW))
        for record in taken[:2]:
            await settle(engine, record, complete(record))
        hopeless = Fail(fence_of(taken[2]), _FAILURE, retryable=False)
        await settle(engine, taken[2], hopeless)
        for new in many:
            assert (await the(engine, new.id)).definition.policy == _NEW
        clock.advance("1h")
        assert await engine.prune(100) == 2

    async def test_what_the_creator_asked_for_stays(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        new = a_job(policy=_OLD, attempts=1, timeout=10 * SECOND)
        record = await accept_one(engine, new)
        assert record.definition.policy.retry.attempts == 1
        taken = await claim_one(engine, await a_session(engine), a_demand(policy=_NEW))
        asked = (taken.definition.attempts, taken.definition.timeout)
        assert asked == (1, 10 * SECOND)
        policy = taken.definition.policy
        assert (policy.retry.attempts, policy.timeout) == (1, 10 * SECOND)
        assert policy.activity_timeout == _NEW.activity_timeout
        assert await the(engine, new.id) == taken
        clock.advance("10s")
        assert (await engine.due("jobs", 10)).jobs == ()
        clock.advance_micros(TIMEOUT_SLACK)
        await settle_overdue(engine)
        assert (await the(engine, new.id)).head.state is State.FAILED  # no dead letters in _NEW

    async def test_the_key_policy_is_the_one_at_creation(self, engine: Engine) -> None:
        key = KeyPolicy("k", active=2, queued=None)
        await accept_one(engine, a_keyed_job("k", key))
        stricter = Policy(key=KeyPolicy("k", queued=None), on_lost="block", timeout=SECOND)
        taken = await claim_one(engine, await a_session(engine), a_demand(policy=stricter))
        policy = taken.definition.policy
        assert (policy.key, policy.on_lost, policy.timeout) == (key, "block", SECOND)

    async def test_a_job_created_without_a_key_never_blocks_one(self, engine: Engine) -> None:
        await accept_one(engine, a_job())
        blocking = Policy(key=KeyPolicy("k"), on_lost="block")
        taken = await claim_one(engine, await a_session(engine), a_demand(policy=blocking))
        assert (taken.definition.policy.key, taken.definition.policy.on_lost) == (None, "retry")

    async def test_each_type_of_a_claim_gets_its_own_policy(self, engine: Engine) -> None:
        for name in ("a", "b", "a"):
            await accept_one(engine, a_job(type=name, policy=_OLD))
        demand = a_demand("a", "b", policy=_NEW)._replace(policies=(_NEW, _OLD))
        taken = await claim(engine, await a_session(engine), demand)
        found = [(each.definition.type, each.definition.policy) for each in taken]
        assert found == [("a", _NEW), ("b", _OLD), ("a", _NEW)]
