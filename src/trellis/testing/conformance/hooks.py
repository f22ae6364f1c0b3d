"""Hooks: jobs that are created at the end of others, in the same step, once per generation."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import json
from typing import Any

import pytest

from trellis.core.commands import (
    Cancel,
    Command,
    Complete,
    Dismiss,
    Expire,
    Fail,
    Release,
    Replay,
    Snooze,
)
from trellis.core.durations import SECOND, to_datetime
from trellis.core.followups import derived_id
from trellis.core.job import Failure, JobRecord, Prerequisite, Relations
from trellis.core.policy import Hook, HookOn, KeyPolicy, Policy
from trellis.core.retry import Retry
from trellis.core.states import State
from trellis.engines.contracts import DeclaredType
from trellis.engines.demand import Demand
from trellis.engines.operating import Drain
from trellis.engines.port import Engine
from trellis.engines.values import Committed, Conflict, JobFilter, Replaced
from trellis.testing.builders import SERVICE, a_job, a_keyed_job, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    a_session,
    accept_one,
    attempt,
    claim,
    claim_one,
    decided,
    give_up_lost,
    reap_lapsed,
    settle,
    settle_overdue,
    start,
)
from trellis.testing.conformance.suite import EngineSuite

BOOM = Failure("exception", "boom", None, '{"order":7}')


def _hooked(*ends: HookOn, **options: Any) -> Policy:  # noqa: ANN401 - any field of a policy
    hooks = tuple(Hook(end, f"after_{end}", "hooks") for end in ends)
    return Policy(retry=Retry.never(), hooks=hooks, **options)


async def _created(engine: Engine) -> list[JobRecord]:
    """Return the jobs of hooks, oldest first."""
    page = await engine.find(JobFilter(queues=("hooks",)))
    return sorted(page.jobs, key=lambda each: each.definition.row)


def _declared(policy: Policy) -> DeclaredType:
    return DeclaredType(SERVICE, "invoice", "invoices", policy)


async def _reloaded(engine: Engine, record: JobRecord) -> JobRecord:
    (found,) = (await engine.load([record.definition.id])).records
    assert found is not None
    return found


class TestHooks(EngineSuite):
    """An end creates the jobs of its hooks, together with the end itself."""

    async def test_a_success_creates_its_hook_with_the_outcome(self, engine: Engine) -> None:
        new = a_job(policy=_hooked("success", "failure"), payload='{"a":1}', tags=(("t", "x"),))
        taken = await start(engine, await a_session(engine), new)
        ended = await settle(engine, taken, Complete(fence_of(taken), '{"b":2}'))
        (hook,) = await _created(engine)
        assert hook.definition.id == derived_id(new.id, 0, "hook/success/after_success")
        assert (hook.definition.service, hook.definition.type) == (SERVICE, "after_success")
        assert hook.definition.relations == Relations(parent=new.id)
        assert hook.definition.context == ended.definition.context
        assert json.loads(hook.definition.payload) == {
            "job_id": new.id,
            "service": SERVICE,
            "type": new.type,
            "state": "completed",
            "generation": 0,
            "attempt": 1,
            "finished_at": to_datetime(ended.head.finished_at or 0).isoformat(),
            "error": None,
            "tags": {"t": "x"},
            "payload": {"a": 1},
            "result": {"b": 2},
            "is_whole": True,
        }
        demand = Demand(SERVICE, ("after_success",), 1)
        assert await claim_one(engine, await a_session(engine), demand)

    async def test_a_failure_carries_its_error_and_data(self, engine: Engine) -> None:
        policy = _hooked("success", "failure")
        taken = await start(engine, await a_session(engine), a_job(policy=policy))
        await settle(engine, taken, Fail(fence_of(taken), BOOM, retryable=False))
        (hook,) = await _created(engine)
        assert hook.definition.type == "after_failure"
        error = json.loads(hook.definition.payload)["error"]
        assert error == {**BOOM._asdict(), "data": {"order": 7}}

    async def test_an_attempt_that_is_tried_again_fires_nothing(self, engine: Engine) -> None:
        policy = Policy(retry=Retry.fixed(0, attempts=2), hooks=_hooked("finished").hooks)
        session = await a_session(engine)
        taken = await start(engine, session, a_job(policy=policy))
        await settle(engine, taken, Fail(fence_of(taken), BOOM))
        assert await _created(engine) == []
        again = await claim_one(engine, session)
        await settle(engine, again, Snooze(fence_of(again), 0))
        assert await _created(engine) == []
        last = await claim_one(engine, session)
        assert (await settle(engine, last, Fail(fence_of(last), BOOM))).head.state is State.DEAD
        assert len(await _created(engine)) == 1

    @pytest.mark.parametrize("word", [Cancel(), Cancel(force=True), Expire()])
    async def test_ends_that_no_worker_reports_fire_too(
        self, engine: Engine, clock: ManualClock, word: Command
    ) -> None:
        policy = _hooked("success", "failure", "finished")
        new = a_job(policy=policy, deadline_in=SECOND)
        record = await accept_one(engine, new)
        clock.advance("1s")
        ended = await settle(engine, record, word)
        hooks = [hook.definition.type for hook in await _created(engine)]
        failed = ["after_failure"] if ended.head.state is State.EXPIRED else []
        assert hooks == [*failed, "after_finished"]

    async def test_a_lost_attempt_and_an_overdue_job_fire_too(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        policy = _hooked("failure")
        await start(engine, await a_session(engine), a_job(policy=policy))
        clock.advance("30s")
        await reap_lapsed(engine)
        await give_up_lost(engine)
        await accept_one(engine, a_job(policy=policy, deadline_in=SECOND))
        clock.advance("2s")
        await settle_overdue(engine)
        assert len(await _created(engine)) == 2

    async def test_a_refused_settlement_fires_nothing(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job(policy=_hooked("finished")))
        late = await decided(engine, taken, Complete(fence_of(taken)))
        await settle(engine, taken, Cancel(force=True))
        (answer,) = await engine.commit([late])
        assert isinstance(answer, Conflict)
        assert len(await _created(engine)) == 1

    async def test_a_repeated_settlement_fires_once(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job(policy=_hooked("finished")))
        done = await decided(engine, taken, Complete(fence_of(taken)))
        answers = await engine.commit([done, done])
        assert [isinstance(answer, Conflict) for answer in answers] == [False, True]
        assert isinstance((await engine.commit([done]))[0], Conflict)
        assert len(await _created(engine)) == 1

    async def test_an_old_attempt_in_the_same_call_does_not_refuse_the_current_one(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        old = await start(engine, session, a_job(policy=_hooked("finished")))
        await settle(engine, old, Release(fence_of(old)))
        current = await claim_one(engine, session)
        late, timely = [
            await decided(engine, each, Complete(fence_of(each))) for each in (old, current)
        ]
        refused, stored, again = await engine.commit([late, timely, late])
        ended = await _reloaded(engine, current)
        assert (refused, stored, again) == (Conflict(current), Committed(), Conflict(ended))
        assert ended.head.state is State.COMPLETED
        assert len(await _created(engine)) == 1

    async def test_each_generation_fires_and_a_dismissal_does_not(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job(policy=_hooked("failure")))
        dead = await settle(engine, taken, Fail(fence_of(taken), BOOM))
        await settle(engine, dead, Replay())
        again = await claim_one(engine, session)
        dead = await settle(engine, again, Fail(fence_of(again), BOOM))
        await settle(engine, dead, Dismiss())
        hooks = await _created(engine)
        generations = [json.loads(hook.definition.payload)["generation"] for hook in hooks]
        assert generations == [0, 1]

    async def test_many_ends_in_one_call_fire_once_each(self, engine: Engine) -> None:
        session = await a_session(engine)
        jobs = [a_job(policy=_hooked("finished") if n % 2 else Policy()) for n in range(6)]
        await engine.create(jobs)
        taken = await claim(engine, session)
        done = [await decided(engine, each, Complete(fence_of(each), "1")) for each in taken]
        await engine.commit(done)
        parents = [json.loads(hook.definition.payload)["job_id"] for hook in await _created(engine)]
        assert sorted(parents) == sorted(new.id for new in jobs[1::2])

    async def test_a_replaced_job_fires(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}", 1, 0, "replace-oldest")
        old = a_keyed_job("user/7", rule, policy=_hooked("finished"))
        await accept_one(engine, old)
        new = a_keyed_job("user/7", rule, policy=_hooked("finished"))
        assert await engine.create([new]) == [Replaced(new.id, old.id)]
        (hook,) = await _created(engine)
        assert json.loads(hook.definition.payload)["state"] == "skipped"

    async def test_a_keyed_job_frees_its_slot_and_fires(self, engine: Engine) -> None:
        rule = KeyPolicy("user/{id}", 1, None, "wait")
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job("u", rule, policy=_hooked("finished")))
        waiting = await accept_one(engine, a_keyed_job("u", rule))
        assert await claim(engine, session) == []
        await settle(engine, taken, Complete(fence_of(taken)))
        assert (await claim_one(engine, session)).definition.id == waiting.definition.id
        assert len(await _created(engine)) == 1

    async def test_a_drain_does_not_keep_hooks_out(self, engine: Engine) -> None:
        taken = await start(engine, await a_session(engine), a_job(policy=_hooked("finished")))
        await engine.set_drain(Drain(True, "ann"))
        await settle(engine, taken, Complete(fence_of(taken)))
        assert len(await _created(engine)) == 1

    async def test_the_policy_of_the_last_claim_names_the_hooks(self, engine: Engine) -> None:
        await accept_one(engine, a_job())
        declared = Demand(SERVICE, ("invoice",), 1, policies=(_hooked("success"),))
        taken = await claim_one(engine, await a_session(engine), declared)
        await attempt(engine, taken, Complete(fence_of(taken)))
        assert [hook.definition.type for hook in await _created(engine)] == ["after_success"]

    async def test_a_job_that_no_worker_has_claimed_has_the_hooks_of_its_type(
        self, engine: Engine
    ) -> None:
        before = await accept_one(engine, a_job(type="invoice"))
        await engine.declare_types([_declared(_hooked("finished"))])
        after = await accept_one(engine, a_job(type="invoice", deadline_in=SECOND))
        other = await accept_one(engine, a_job(type="other"))
        for record in (before, after, other):
            await settle(engine, await _reloaded(engine, record), Cancel())
        parents = [hook.definition.relations for hook in await _created(engine)]
        assert parents == [Relations(parent=each.definition.id) for each in (before, after)]

    async def test_hooks_of_the_type_and_of_the_creator_fire_once_each(
        self, engine: Engine
    ) -> None:
        (finished,) = _hooked("finished").hooks
        older = (finished._replace(queue="elsewhere"), Hook("finished", "removed", "hooks"))
        record = await accept_one(engine, a_job(policy=Policy(hooks=older)))
        await engine.declare_types([_declared(_hooked("finished"))])
        await settle(engine, await _reloaded(engine, record), Cancel())
        assert [hook.definition.type for hook in await _created(engine)] == [
            "after_finished",
            "removed",
        ]

    async def test_a_claim_replaces_the_hooks_that_were_declared_for_the_type(
        self, engine: Engine
    ) -> None:
        await engine.declare_types([_declared(_hooked("finished"))])
        await accept_one(engine, a_job())
        bare = Demand(SERVICE, ("invoice",), 1, policies=(Policy(),))
        taken = await claim_one(engine, await a_session(engine), bare)
        assert (taken.definition.policy, await _reloaded(engine, taken)) == (Policy(), taken)
        await attempt(engine, taken, Complete(fence_of(taken)))
        assert await _created(engine) == []

    async def test_the_latest_declaration_of_a_type_counts(self, engine: Engine) -> None:
        declared = _declared(_hooked("finished"))
        await engine.declare_types([declared, declared._replace(type="other", deadline=SECOND)])
        record = await accept_one(engine, a_job())
        await engine.declare_types([latest := declared._replace(policy=Policy(), schema_version=2)])
        await engine.declare_types([])
        assert await engine.declared_types() == [
            latest, declared._replace(type="other", deadline=SECOND),
        ]  # fmt: skip
        await settle(engine, await _reloaded(engine, record), Cancel())
        assert await _created(engine) == []

    async def test_secrets_of_the_type_are_masked_before_the_first_claim(
        self, engine: Engine
    ) -> None:
        await engine.declare_types([_declared(_hooked("finished", secrets=("/payload/card",)))])
        record = await accept_one(engine, a_job(policy=Policy(secrets=("/payload/pin",))))
        assert record.definition.policy.secrets == ("/payload/card", "/payload/pin")
        await settle(engine, record, Cancel())
        (hook,) = await _created(engine)
        assert hook.definition.policy.secrets == ("/payload/payload/card", "/payload/payload/pin")

    async def test_replaced_and_dependent_jobs_have_the_hooks_of_their_type(
        self, engine: Engine
    ) -> None:
        await engine.declare_types([_declared(_hooked("finished"))])
        rule = KeyPolicy("user/{id}", 1, 0, "replace-oldest")
        old, new = a_keyed_job("user/7", rule), a_keyed_job("user/7", rule)
        first = await accept_one(engine, a_job(type="first"))
        waiting = a_job(after=(Prerequisite(first.definition.id),))
        await engine.create([old, waiting])
        assert await engine.create([new]) == [Replaced(new.id, old.id)]
        await settle(engine, first, Cancel())
        states = [json.loads(each.definition.payload)["state"] for each in await _created(engine)]
        assert states == ["skipped", "cancelled"]

    async def test_a_hook_has_the_schema_version_and_deadline_of_its_type(
        self, engine: Engine
    ) -> None:
        policy = Policy(hooks=(Hook("finished", "later", "hooks", 3, 5 * SECOND),))
        record = await accept_one(engine, a_job(policy=policy))
        assert record.definition.policy == policy
        await settle(engine, record, Cancel())
        (hook,) = await _created(engine)
        assert hook.definition.schema_version == 3
        assert hook.definition.deadline_at == hook.definition.created_at + 5 * SECOND

    async def test_a_hook_has_the_tenant_and_weight_of_its_job(self, engine: Engine) -> None:
        relations = Relations(tenant="gold", weight=3)
        new = a_job(policy=_hooked("success"), relations=relations)
        taken = await start(engine, await a_session(engine), new)
        await settle(engine, taken, Complete(fence_of(taken)))
        (hook,) = await _created(engine)
        assert hook.definition.relations == relations._replace(parent=new.id)

    async def test_an_outcome_that_is_too_large_is_cut(self, engine: Engine) -> None:
        payload = json.dumps("x" * 600_000)
        taken = await start(
            engine, await a_session(engine), a_job(policy=_hooked("success"), payload=payload)
        )
        await settle(engine, taken, Complete(fence_of(taken), payload))
        (hook,) = await _created(engine)
        body = json.loads(hook.definition.payload)
        assert (body["is_whole"], body["payload"], body["result"]) == (False, None, None)

    async def test_secrets_of_the_job_stay_masked_in_the_hook(self, engine: Engine) -> None:
        policy = _hooked("success", secrets=("/payload/card", "/result/token"))
        taken = await start(engine, await a_session(engine), a_job(policy=policy))
        await settle(engine, taken, Complete(fence_of(taken)))
        (hook,) = await _created(engine)
        secrets = ("/payload/payload/card", "/payload/result/token")
        assert hook.definition.policy.secrets == secrets
