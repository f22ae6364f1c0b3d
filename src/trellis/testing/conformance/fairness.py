"""The order of claims between tenants of a queue, and aging."""
# ruff: noqa: D102, PLR2004, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Unpack

from trellis.core.batches import NewBatch
from trellis.core.commands import Adjust, Cancel, Complete, Fail, Release, Replay, Retry, Snooze
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobRecord, NewJob, Prerequisite, Relations
from trellis.core.policy import Hook, Policy
from trellis.core.retry import Retry as RetryPolicy
from trellis.engines.audit import AuditFilter, By, Change
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter, QueueSettings
from trellis.testing.builders import (
    SERVICE,
    JobParts,
    a_demand,
    a_job,
    a_job_id,
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
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import EngineSuite, needs

_ONCE = Policy(retry=RetryPolicy.fixed("0s", attempts=9))
INVOICES = ("shop", "invoices", "invoice")


def of(
    tenant: str, number: int = 1, weight: int | None = None, **parts: Unpack[JobParts]
) -> list[NewJob]:
    """Return requests of a tenant."""
    parts["relations"] = Relations(tenant=tenant, weight=weight)
    return [a_job(**parts) for _ in range(number)]


def tenants(jobs: Sequence[JobRecord]) -> str:
    """Return the tenants of jobs, in their order."""
    return "".join((job.definition.relations or Relations()).tenant or "-" for job in jobs)


@needs("ordered")
class TestFairShare(EngineSuite):
    """Tenants take turns within a queue, however many jobs each has."""

    async def test_tenants_take_turns(self, engine: Engine) -> None:
        await accept(engine, *of("a", 4), *of("b", 2), *of("c", 3))
        assert tenants(await claim(engine, await a_session(engine))) == "abcabcaca"

    async def test_jobs_created_one_by_one_take_turns(self, engine: Engine) -> None:
        for _ in range(4):
            await accept(engine, *of("a"))
        await accept(engine, *of("b", 4))
        assert tenants(await claim(engine, await a_session(engine))) == "abababab"

    async def test_the_jobs_of_a_tenant_run_in_their_order(self, engine: Engine) -> None:
        jobs = await accept(engine, *of("a", 3))
        jobs += await accept(engine, *of("a", 2))
        assert ids(await claim(engine, await a_session(engine))) == ids(jobs)

    async def test_a_tenant_that_comes_late_is_served_next(self, engine: Engine) -> None:
        session = await a_session(engine)
        await accept(engine, *of("a", 50))
        assert tenants(await claim(engine, session, limit=10)) == "a" * 10
        await accept(engine, *of("b", 2))
        assert tenants(await claim(engine, session, limit=5)) == "ababa"

    async def test_late_comers_have_no_claim_on_the_turns_before_them(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        await accept(engine, *of("a", 50))
        await claim(engine, session, limit=20)
        clock.advance("1h")
        await accept(engine, *of("b", 20))
        assert Counter(tenants(await claim(engine, session, limit=10))) == {"a": 5, "b": 5}

    async def test_a_tenant_whose_job_was_just_served_is_not_served_twice(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        await accept(engine, *of("a", 5), *of("b"))
        served = tenants(await claim(engine, session, limit=2))
        for _ in range(3):
            await accept(engine, *of("b"))
            served += tenants(await claim(engine, session, limit=2))
        assert served == "abababab"

    async def test_weights_give_more_turns(self, engine: Engine) -> None:
        await accept(engine, *of("a", 30), *of("b", 30, 3))
        taken = tenants(await claim(engine, await a_session(engine), limit=24))
        assert Counter(taken) == {"a": 6, "b": 18}
        assert "aa" not in taken

    async def test_a_weight_counts_from_the_job_that_has_it(self, engine: Engine) -> None:
        session = await a_session(engine)
        await accept(engine, *of("a", 40), *of("b", 40))
        await claim(engine, session, limit=20)
        await accept(engine, *of("c", 20, 2))
        assert Counter(tenants(await claim(engine, session, limit=20))) == {"a": 5, "b": 5, "c": 10}

    async def test_priority_comes_before_turns(self, engine: Engine) -> None:
        await accept(engine, *of("a", 2), *of("b", 1), *of("a", 2, priority=1))
        assert tenants(await claim(engine, await a_session(engine))) == "aaaba"

    async def test_the_types_of_a_queue_share_its_turns(self, engine: Engine) -> None:
        session = await a_session(engine)
        await accept(engine, *of("a", 20, type="one"))
        await claim(engine, session, a_demand("one", "two"), limit=4)
        await accept(engine, *of("b", 5, type="two"))
        taken = await claim(engine, session, a_demand("one", "two"), limit=8)
        assert Counter(tenants(taken)) == {"a": 4, "b": 4}

    async def test_each_queue_has_its_own_shares(self, engine: Engine) -> None:
        session = await a_session(engine)
        await accept(engine, *of("a", 20))
        await claim(engine, session, limit=20)
        await accept(engine, *of("b", 2, queue="other"), *of("a", 2, queue="other"))
        assert tenants(await claim(engine, session)) == "baba"

    async def test_work_that_was_handed_back_keeps_its_place(self, engine: Engine) -> None:
        session = await a_session(engine)
        await accept(engine, *of("a", 3), *of("b", 3))
        first = await claim_one(engine, session)
        await settle(engine, first, Release(fence_of(first)))
        again = await claim(engine, session)
        assert ids(again)[:1] == ids([first])
        assert tenants(again) == "ababab"

    async def test_retries_take_a_new_turn(self, engine: Engine, clock: ManualClock) -> None:
        session = await a_session(engine)
        await accept(engine, *of("a", 3, policy=_ONCE), *of("b", 2))
        first = await claim_one(engine, session)
        clock.advance("1s")
        await settle(engine, first, Fail(fence_of(first), Failure("exception", "x")))
        taken = await claim(engine, session)
        assert tenants(taken) == "babaa"
        assert ids(taken)[-1:] == ids([first])

    async def test_snoozed_jobs_of_one_tenant_do_not_delay_another(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        await accept(engine, *of("a", 6))
        for job in await claim(engine, session):
            await settle(engine, job, Snooze(fence_of(job), SECOND))
        await accept(engine, *of("b", 1, delay=SECOND))
        clock.advance("1s")
        assert tenants(await claim(engine, session, limit=100))[:2] == "ab"

    async def test_delayed_jobs_take_turns_when_their_time_has_come(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        await accept(engine, *of("a", 4, delay=SECOND), *of("b", 2, delay=SECOND))
        assert await claim(engine, session) == []
        clock.advance("1s")
        assert await engine.promote(100) == 6
        assert tenants(await claim(engine, session)) == "ababaa"

    async def test_a_revived_job_takes_a_turn(self, engine: Engine) -> None:
        session = await a_session(engine)
        never = Policy(retry=RetryPolicy.never())
        dead = await start(engine, session, of("a", policy=never)[0])
        dead = await settle(engine, dead, Fail(fence_of(dead), Failure("exception", "x")))
        await accept(engine, *of("a", 2), *of("b", 2))
        await settle(engine, dead, Replay() if dead.head.state == "dead" else Retry())
        taken = await claim(engine, session)
        assert tenants(taken) == "ababa"
        assert ids(taken)[-1:] == ids([dead])

    async def test_cancelled_jobs_do_not_count_against_their_tenant(self, engine: Engine) -> None:
        session = await a_session(engine)
        jobs = await accept(engine, *of("a", 20), *of("b", 20))
        for job in jobs[:20]:
            await settle(engine, job, Cancel())
        await claim_one(engine, session)
        await accept(engine, *of("a", 3))
        assert tenants(await claim(engine, session, limit=8)) == "bbababab"

    async def test_a_share_is_forgotten_when_it_is_over(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        await accept(engine, *of("a", 3), *of("b", 1))
        await claim(engine, session, limit=2)
        clock.advance("1h")
        await engine.prune(100)
        await accept(engine, *of("b", 1), *of("c", 1))
        assert tenants(await claim(engine, session)) == "abca"

    async def test_jobs_without_a_tenant_keep_their_due_time(self, engine: Engine) -> None:
        await accept(engine, *of("a", 3), a_job(), *of("b", 1))
        assert tenants(await claim(engine, await a_session(engine))) == "a-baa"

    async def test_a_job_moved_to_another_queue_takes_a_turn_there(self, engine: Engine) -> None:
        session = await a_session(engine)
        await accept(engine, *of("b", 3, queue="other"))
        jobs = await accept(engine, *of("a", 3))
        for job in jobs:
            await settle(engine, job, Adjust(queue="other"))
        assert Counter(tenants(await claim(engine, session, limit=4))) == {"a": 2, "b": 2}

    async def test_a_running_job_that_was_moved_takes_a_turn_when_it_is_handed_back(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        await accept(engine, *of("a", 5))
        moved = (await claim(engine, session))[-1]
        moved = await settle(engine, moved, Adjust(queue="other"))
        await accept(engine, *of("b", 3, queue="other"))
        await settle(engine, moved, Release(fence_of(moved)))
        assert tenants(await claim(engine, session)) == "abbb"

    async def test_keys_hand_their_slots_over_by_turns(self, engine: Engine) -> None:
        session = await a_session(engine)
        share = {name: Relations(tenant=name) for name in "ab"}
        for name in "aaab":
            await accept_one(engine, a_keyed_job("k", IN_TURN, relations=share[name]))
        served = ""
        for _ in range(4):
            taken = await claim_one(engine, session)
            served += tenants([taken])
            await settle(engine, taken, complete(taken))
        assert served == "abaa"

    async def test_a_repeated_create_takes_no_second_turn(self, engine: Engine) -> None:
        jobs = of("a", 2)
        await accept(engine, *jobs)
        await accept(engine, *jobs)
        await accept(engine, *of("b", 2), *of("a"))
        assert tenants(await claim(engine, await a_session(engine))) == "ababa"

    async def test_the_jobs_ahead_are_counted_by_turns(self, engine: Engine) -> None:
        await accept(engine, *of("a", 9))
        late = await accept_one(engine, of("b")[0])
        assert await engine.ahead(late.definition.id, ["shop/invoice"], 100) == {INVOICES: 1}

    async def test_the_jobs_ahead_are_counted_by_queue_and_type(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await accept(engine, *(a_job() for _ in range(3)), a_job(priority=1), a_job(priority=1))
        await accept(engine, a_job(queue="slow"), a_job(type="mail", queue="slow"))
        await accept(engine, a_job(queue="held"), a_job(delay=SECOND))
        await engine.set_queue(QueueSettings("shop", "held", paused=True))
        clock.advance_micros(1)
        job = (await accept_one(engine, a_job())).definition.id
        await accept(engine, a_job(priority=-1), a_job())
        both = ["shop/invoice", "shop/mail"]
        slow = ("shop", "slow", "invoice")
        mails = ("shop", "slow", "mail")
        assert await engine.ahead(job, both, 100) == {INVOICES: 5, slow: 1, mails: 1}
        assert await engine.ahead(job, ["shop/mail"], 100) == {mails: 1}
        assert await engine.ahead(job, both, 2) == {INVOICES: 4, slow: 1, mails: 1}

    async def test_two_thousand_jobs_of_a_tenant_delay_another_by_one_turn(
        self, engine: Engine
    ) -> None:
        await engine.create(of("a", 2000))
        await accept(engine, *of("b", 3))
        assert tenants(await claim(engine, await a_session(engine), limit=6)) == "ababab"


class TestInheritedTenants(EngineSuite):
    """Jobs that follow others have a tenant as well, with its weight."""

    async def test_jobs_are_found_and_counted_by_tenant(self, engine: Engine) -> None:
        await accept(engine, *of("a", 2), *of("b"), a_job())
        found = await engine.find(JobFilter(tenant="a"))
        assert tenants(found.jobs) == "aa"
        assert (await engine.count(JobFilter(), "tenant")).groups == {"": 1, "a": 2, "b": 1}

    @needs("ordered")
    async def test_a_hook_takes_a_turn_of_the_tenant_of_its_job(self, engine: Engine) -> None:
        session = await a_session(engine)
        policy = Policy(hooks=(Hook("finished", "invoice", "invoices"),))
        (new,) = of("b", weight=3, policy=policy)
        taken = await start(engine, session, new)
        await accept(engine, *of("a", 3))
        await settle(engine, taken, complete(taken))
        (hook,) = (await engine.find(JobFilter(parent=new.id))).jobs
        assert hook.definition.relations == Relations(parent=new.id, tenant="b", weight=3)
        assert tenants(await claim(engine, session)) == "abaa"

    async def test_a_fan_in_has_its_own_tenant_or_that_of_the_first_member(
        self, engine: Engine
    ) -> None:
        gold, iron = Relations(tenant="gold", weight=3), Relations(tenant="iron", weight=2)
        assert await _fan_in(engine, a_job(relations=gold), iron, iron) == gold
        assert await _fan_in(engine, a_job(), iron, gold) == iron
        assert await _fan_in(engine, a_job(), Relations(), gold) == Relations()
        assert await _fan_in(engine, a_job()) == Relations()

    @needs("ordered")
    async def test_a_job_that_takes_a_result_gets_its_tenant_with_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        follower = await accept_one(engine, _follower(first))
        assert tenants([follower]) == "-"
        await accept(engine, *of("a", 3))
        clock.advance("10s")  # with the rank of its due time it would be the last
        await settle(engine, first, Complete(fence_of(first), '{"tenant":"b"}'))
        expected = Relations(payload_from=first.definition.id, tenant="b", weight=3)
        assert (await the(engine, follower.definition.id)).definition.relations == expected
        page = await engine.find(JobFilter(tenant="b"))
        assert ids([*page.jobs]) == ids([follower])
        assert (await engine.count(JobFilter(), "tenant")).groups == {"": 1, "a": 3, "b": 1}
        taken = await claim(engine, session)
        assert tenants(taken) == "baaa"
        assert taken[0].definition.relations == expected
        assert taken[0].definition.payload == '{"tenant":"b"}'

    @needs("ordered")
    async def test_a_result_that_is_there_already_gives_a_new_job_its_tenant(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        await settle(engine, first, Complete(fence_of(first), '{"tenant":"b"}'))
        await accept(engine, *of("a", 2))
        follower = await accept_one(engine, _follower(first))
        assert tenants([follower]) == "b"
        assert tenants(await claim(engine, session)) == "aba"

    async def test_a_result_without_a_tenant_leaves_the_job_without_one(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        results = ["null", "{}", '{"tenant":""}', '{"tenant":[]}', '{"tenant":"a\\u0000"}']
        for result in results:
            first = await start(engine, session, a_job())
            follower = await accept_one(engine, _follower(first))
            await settle(engine, first, Complete(fence_of(first), result))
            taken = await claim_one(engine, session)
            assert ids([taken]) == ids([follower])
            assert taken.definition.relations == Relations(payload_from=first.definition.id)

    async def test_a_tenant_that_the_creator_named_stays(self, engine: Engine) -> None:
        session = await a_session(engine)
        first = await start(engine, session, a_job())
        relations = Relations(tenant="c", weight=2, payload_from=first.definition.id)
        await accept_one(engine, _follower(first)._replace(relations=relations))
        await settle(engine, first, Complete(fence_of(first), '{"tenant":"b"}'))
        assert (await claim_one(engine, session)).definition.relations == relations


def _follower(first: JobRecord) -> NewJob:
    """Return a job whose payload, with its tenant, is the result of another."""
    relations = Relations(
        payload_from=first.definition.id, fair="{tenant}", weights=(("b", 3), ("c", 9))
    )
    after = (Prerequisite(first.definition.id),)
    return a_job(payload="null", relations=relations, after=after)


async def _fan_in(engine: Engine, then: NewJob, *members: Relations) -> Relations:
    """Return the tenant of the fan-in job of a batch with these members, and its weight."""
    new = NewBatch(a_job_id(), SERVICE, then=then)
    await engine.open_batch(new)
    jobs = await accept(engine, *(a_job(relations=each._replace(batch=new.id)) for each in members))
    await engine.seal_batch(new.id)
    for record in jobs:
        await settle(engine, record, Cancel())
    found = await engine.batch(new.id)
    assert found is not None
    assert found.fan_in is not None
    relations = (await the(engine, found.fan_in)).definition.relations
    assert relations is not None
    assert relations.fan_in_of == new.id
    return relations.of_tenant


class TestAging(EngineSuite):
    """A waiting job counts one priority higher for each span that it has waited."""

    async def test_without_aging_the_priority_decides(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        low = await accept_one(engine, a_job(priority=-1))
        clock.advance("1d")
        high = await accept_one(engine, a_job())
        assert await engine.aging() is None
        assert ids(await claim(engine, await a_session(engine))) == ids([high, low])

    @needs("ordered")
    async def test_aging_lifts_what_waits_long(self, engine: Engine, clock: ManualClock) -> None:
        await engine.set_aging(600 * SECOND, By())
        low = await accept_one(engine, a_job(priority=-1))
        clock.advance("9m")
        early = await accept_one(engine, a_job())
        clock.advance("2m")
        late = await accept_one(engine, a_job())
        assert ids(await claim(engine, await a_session(engine))) == ids([early, low, late])

    @needs("ordered")
    async def test_aging_holds_between_types_and_queues(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.set_aging(60 * SECOND, By())
        low = await accept_one(engine, a_job(type="one", queue="slow", priority=-2))
        clock.advance("119s")
        middle = await accept_one(engine, a_job(type="two", priority=0))
        clock.advance("2s")
        late = await accept_one(engine, a_job(type="two", priority=0))
        session = await a_session(engine)
        taken = [await claim_one(engine, session, a_demand("one", "two")) for _ in range(3)]
        assert ids(taken) == ids([middle, low, late])

    @needs("ordered")
    async def test_aging_can_be_turned_off_again(self, engine: Engine, clock: ManualClock) -> None:
        await engine.set_aging(60 * SECOND, By())
        low = await accept_one(engine, a_job(priority=-1))
        clock.advance("1h")
        high = await accept_one(engine, a_job(type="other"))
        await engine.set_aging(None, By())
        session = await a_session(engine)
        taken = await claim(engine, session, a_demand("invoice", "other"))
        assert ids(taken) == ids([high, low])

    @needs("ordered")
    async def test_a_change_of_aging_reaches_a_worker_that_already_claims(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session, demand = await a_session(engine), a_demand("invoice", "other")
        assert await claim(engine, session, demand) == []
        low = await accept_one(engine, a_job(priority=-1))
        clock.advance("1h")
        high = await accept_one(engine, a_job(type="other"))
        await engine.set_aging(60 * SECOND, By())
        assert ids(await claim(engine, session, demand)) == ids([low, high])

    @needs("ordered")
    async def test_slots_of_keys_are_handed_over_by_age(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.set_aging(60 * SECOND, By())
        session = await a_session(engine)
        holder = await start(engine, session, a_keyed_job("k", IN_TURN))
        low = await accept_one(engine, a_keyed_job("k", IN_TURN, priority=-1))
        clock.advance("10m")
        await engine.renew(session, [fence_of(holder)])
        await accept_one(engine, a_keyed_job("k", IN_TURN))
        await settle(engine, holder, complete(holder))
        assert ids([await claim_one(engine, session)]) == ids([low])

    @needs("ordered")
    async def test_the_jobs_ahead_are_counted_by_age(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        low = await accept_one(engine, a_job(priority=-1))
        clock.advance("1h")
        await accept(engine, a_job(), a_job())
        job, types = low.definition.id, ["shop/invoice"]
        assert await engine.ahead(job, types, 100) == {INVOICES: 2}
        await engine.set_aging(60 * SECOND, By())
        assert await engine.ahead(job, types, 100) == {}

    async def test_a_drain_of_all_queues_leaves_aging_as_it_is(self, engine: Engine) -> None:
        await engine.set_aging(60 * SECOND, By())
        await engine.set_queue(QueueSettings("shop", "invoices", paused=True))
        assert await engine.aging() == 60 * SECOND

    async def test_a_change_of_aging_is_audited(self, engine: Engine) -> None:
        for _ in range(2):  # what is so already leaves no entry
            await engine.set_aging(60 * SECOND, By("ann", "starving"))
        for _ in range(2):
            await engine.set_aging(None, By("bob"))
        entries = await engine.audit(AuditFilter(action="queue"))
        assert [(entry.change, entry.by) for entry in entries] == [
            (Change("queue.aging", "*", {"aging": "1m"}, {"aging": "off"}), By("bob")),
            (Change("queue.aging", "*", {"aging": "off"}, {"aging": "1m"}), By("ann", "starving")),
        ]
