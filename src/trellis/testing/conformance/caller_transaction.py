"""Create inside the caller's transaction: the usual admission, stored by the caller's commit.

The fixture `caller` is a connection of the application to the engine's store, made by its driver,
with `commit()` and `rollback()`, synchronous or awaitable.
"""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import asyncio
from inspect import isawaitable
from typing import Protocol

import pytest

from trellis.core.admission import Reason
from trellis.core.durations import SECOND
from trellis.core.job import Dedupe, NewJob, Prerequisite
from trellis.core.policy import KeyPolicy
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import (
    Accepted,
    Coalesced,
    CreateResult,
    JobFilter,
    QueueSettings,
    Rejected,
    Replaced,
)
from trellis.errors import ConfigurationError
from trellis.testing.builders import QUEUE, SERVICE, a_demand, a_job, a_job_id, a_keyed_job
from trellis.testing.conformance.feed import read, read_until
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept,
    accept_one,
    claim,
    holders,
    ids,
    kinds,
    the,
)
from trellis.testing.conformance.suite import EngineSuite, needs

KEY = "user/7"
_PATIENCE = 10


class CallerConnection(Protocol):
    """A connection of the application."""

    def commit(self) -> object:
        """Store everything."""

    def rollback(self) -> object:
        """Discard everything."""


async def within(engine: Engine, caller: CallerConnection, *jobs: NewJob) -> list[CreateResult]:
    """Create jobs in the caller's transaction."""
    answer = engine.create_within(caller, jobs)
    return await answer if isawaitable(answer) else answer


async def commit(caller: CallerConnection) -> None:
    """Commit the caller's transaction."""
    done = caller.commit()
    if isawaitable(done):
        await done


async def roll_back(caller: CallerConnection) -> None:
    """Roll the caller's transaction back."""
    done = caller.rollback()
    if isawaitable(done):
        await done


async def _count(engine: Engine) -> int:
    await engine.catch_up()
    return (await engine.count(JobFilter())).total


class TestCallerTransaction(EngineSuite):
    """The promises of `create` hold in the caller's transaction too."""

    @needs("caller_transactions")
    async def test_of_jobs_that_are_stored_together_none_is_left_if_one_is_refused(
        self, engine: Engine, caller: CallerConnection
    ) -> None:
        await engine.set_queue(QueueSettings(SERVICE, "closed", draining=True))
        before, after = a_job(), a_job()
        first = a_job(queue="fresh")
        last = a_job(queue="closed", after=(Prerequisite(first.id),))
        assert await within(engine, caller, before) == [Accepted(before.id)]
        answers = await within(
            engine, caller, first._replace(together=True), last._replace(together=True)
        )
        assert answers == [
            Rejected(Reason.OTHER_REFUSED, None),
            Rejected(Reason.DRAINING, None),
        ]
        assert await within(engine, caller, after) == [Accepted(after.id)]
        await commit(caller)
        found = await engine.find(JobFilter())
        assert {each.definition.id for each in found.jobs} == {before.id, after.id}

    @needs("caller_transactions")
    async def test_what_a_caller_creates_is_stored_as_create_stores_it(
        self, engine: Engine, caller: CallerConnection
    ) -> None:
        jobs = [
            a_job(),
            a_job(type="refund", queue="refunds", priority=-4),
            a_job(delay=5 * SECOND, deadline_in=9 * SECOND, tags=(("a", "b"),)),
            a_keyed_job(KEY, IN_TURN, dedupe="d", idempotency_key="i", config="{}", expect="x"),
        ]
        assert await within(engine, caller, *jobs) == [Accepted(new.id) for new in jobs]
        await commit(caller)
        twins = await accept(
            engine,
            *(new._replace(id=a_job_id(), dedupe=None, idempotency_key=None) for new in jobs),
        )
        for new, twin in zip(jobs, twins, strict=True):
            record = await the(engine, new.id)
            assert record.head == twin.head
            known = twin.definition
            assert record.definition == known._replace(
                row=record.definition.row, id=new.id, dedupe=new.dedupe
            )
            assert await engine.journal(new.id) == await engine.journal(twin.definition.id)
        await engine.promote(
            10
        )  # engines that must not wait for the caller admit its keyed job here
        assert await holders(engine, KEY) == [jobs[3].id]

    @needs("caller_transactions")
    async def test_jobs_of_caller_and_others_are_claimed_in_one_order(
        self, engine: Engine, caller: CallerConnection
    ) -> None:
        first = await accept_one(engine, a_job())
        jobs = [a_job(priority=priority) for priority in (0, 2, -1)]
        await within(engine, caller, *jobs)
        await commit(caller)
        last = await accept_one(engine, a_job(priority=2))
        taken = await claim(engine, await a_session(engine))
        order = [jobs[1].id, last.definition.id, first.definition.id, jobs[0].id, jobs[2].id]
        assert ids(taken) == order

    @needs("caller_transactions")
    async def test_a_caller_s_job_is_admitted_by_every_rule_of_create(
        self, engine: Engine, caller: CallerConnection
    ) -> None:
        await engine.set_queue(QueueSettings(SERVICE, "closed", draining=True))
        marked = a_job(dedupe="d", idempotency_key="i")
        await accept(engine, marked)
        asked: list[tuple[NewJob, CreateResult]] = [
            (marked, Accepted(marked.id)),
            (marked._replace(payload="1"), Rejected(Reason.JOB_ID_TAKEN, marked.id)),
            (a_job(dedupe="d"), Coalesced(marked.id, Reason.SAME_DEDUPE_KEY)),
            (a_job(idempotency_key="i"), Coalesced(marked.id, Reason.SAME_IDEMPOTENCY_KEY)),
            (
                a_job(idempotency_key="i", payload="1"),
                Rejected(Reason.IDEMPOTENCY_MISMATCH, marked.id),
            ),
            (a_job(queue="closed"), Rejected(Reason.DRAINING, None)),
            (accepted := a_job(), Accepted(accepted.id)),
        ]
        jobs = [new for new, _ in asked]
        assert await within(engine, caller, *jobs) == [answer for _, answer in asked]
        await commit(caller)
        assert await _count(engine) == 2  # noqa: PLR2004 - the marked one and the accepted one

    @needs("caller_transactions")
    async def test_dedupe_keys_of_a_callers_jobs_hold_as_long_as_those_of_others(
        self, engine: Engine, caller: CallerConnection
    ) -> None:
        keys = Dedupe("unfinished", "unfinished"), Dedupe("period", None, 60 * SECOND)
        jobs = [a_job(dedupe=key) for key in keys]
        await within(engine, caller, *jobs)
        await commit(caller)
        taken = await claim(engine, await a_session(engine))
        assert ids(taken) == [new.id for new in jobs]
        again = [a_job(dedupe=key) for key in keys]
        merged = [Coalesced(new.id, Reason.SAME_DEDUPE_KEY) for new in jobs]
        assert await within(engine, caller, *again) == merged
        await commit(caller)
        assert await engine.create(again) == merged

    @needs("caller_transactions")
    async def test_a_caller_s_job_passes_the_key_s_gate(
        self, engine: Engine, caller: CallerConnection
    ) -> None:
        reject = KeyPolicy("user/{id}", 1, 0, "reject")
        merge = KeyPolicy("user/{id}", 1, 1, "coalesce")
        newest = KeyPolicy("user/{id}", 1, 1, "replace-oldest")
        busy = a_keyed_job(KEY, reject)
        held, waiting = a_keyed_job(KEY, merge, type="a"), a_keyed_job(KEY, merge, type="a")
        run, old = a_keyed_job(KEY, newest, type="b"), a_keyed_job(KEY, newest, type="b")
        await accept(engine, busy, held, waiting, run, old)
        await claim(engine, await a_session(engine), a_demand("b"), limit=1)
        new = a_keyed_job(KEY, newest, type="b")
        jobs = (a_keyed_job(KEY, reject), a_keyed_job(KEY, merge, type="a"), new)
        assert await within(engine, caller, *jobs) == [
            Rejected(Reason.KEY_BUSY, busy.id),
            Coalesced(waiting.id, Reason.KEY_BUSY),
            Replaced(new.id, old.id),
        ]
        await commit(caller)
        skipped = await the(engine, old.id)
        assert skipped.head.state is State.SKIPPED
        assert await kinds(engine, skipped) == ["created", "skipped"]

    @needs("caller_transactions")
    async def test_calls_of_one_transaction_know_of_each_other(
        self, engine: Engine, caller: CallerConnection
    ) -> None:
        one, two = a_job(dedupe="d"), a_keyed_job(KEY, KeyPolicy("user/{id}"))
        await within(engine, caller, one, two)
        again = (one, a_job(dedupe="d"), a_keyed_job(KEY, KeyPolicy("user/{id}")))
        assert await within(engine, caller, *again) == [
            Accepted(one.id),
            Coalesced(one.id, Reason.SAME_DEDUPE_KEY),
            Rejected(Reason.KEY_BUSY, two.id),
        ]
        assert await within(engine, caller) == []
        await commit(caller)
        assert await _count(engine) == 2  # noqa: PLR2004 - one and two

    @needs("caller_transactions")
    async def test_a_caller_needs_no_open_engine(
        self, engine: Engine, caller: CallerConnection
    ) -> None:
        await engine.close()
        new = a_job()
        assert await within(engine, caller, new) == [Accepted(new.id)]
        await commit(caller)
        await engine.open()
        assert (await the(engine, new.id)).head.state is State.PENDING

    @needs("caller_transactions")
    async def test_a_caller_s_commit_is_noticed_by_those_who_wait_for_work(
        self, engine: Engine, caller: CallerConnection
    ) -> None:
        hints = engine.watch(["ready"])
        received = asyncio.ensure_future(anext(hints))
        async with asyncio.timeout(_PATIENCE):
            while not received.done():  # repeated: the start of a watch cannot be observed
                await within(engine, caller, a_job())
                await commit(caller)
                await asyncio.wait({received}, timeout=0.3)
        assert received.result() == "ready"

    @needs("transactions")
    async def test_no_reader_sees_a_job_before_the_commit(
        self, engine: Engine, caller: CallerConnection
    ) -> None:
        await within(engine, caller, new := a_job())
        assert (await engine.load([new.id])).records == (None,)
        assert await _count(engine) == 0
        await commit(caller)
        assert await _count(engine) == 1

    @needs("transactions")
    async def test_a_rollback_forgets_everything(
        self, engine: Engine, caller: CallerConnection
    ) -> None:
        kept = await accept_one(engine, a_keyed_job(KEY, IN_TURN))
        jobs = (
            a_job(dedupe="d", idempotency_key="i"),
            a_keyed_job(KEY, IN_TURN),
            a_job(type="unheard-of", priority=3),
        )
        await within(engine, caller, *jobs)
        await roll_back(caller)
        assert await _count(engine) == 1
        assert await holders(engine, KEY) == ids([kept])
        # The same requests again: the rollback must leave nothing, in the store or in memory.
        assert await engine.create(jobs) == [Accepted(new.id) for new in jobs]
        taken = await claim(engine, await a_session(engine), a_demand("invoice", "unheard-of"))
        assert ids(taken) == [jobs[2].id, kept.definition.id, jobs[0].id]

    @needs("transactions")
    async def test_what_a_rolled_back_caller_added_is_added_again_for_the_next(
        self, engine: Engine, caller: CallerConnection
    ) -> None:
        """Numbers of types and policies, too: the next ones must not be taken for these."""
        await within(engine, caller, a_keyed_job(KEY, IN_TURN, type="ghost", priority=4))
        await roll_back(caller)
        real = await accept_one(engine, a_job(type="real"))
        new = a_job(type="ghost")
        assert await within(engine, caller, new) == [Accepted(new.id)]
        await commit(caller)
        stored = await the(engine, new.id)
        assert (stored.definition.type, stored.definition.policy) == ("ghost", new.policy)
        session = await a_session(engine)
        assert ids(await claim(engine, session, a_demand("real"))) == ids([real])
        assert ids(await claim(engine, session, a_demand("ghost"))) == [new.id]

    @needs("transactions")
    async def test_the_feed_passes_over_nothing_that_a_caller_commits_late(
        self, engine: Engine, caller: CallerConnection
    ) -> None:
        await within(engine, caller, late := a_job())
        created = [late.id]
        if not engine.capabilities.one_writer:
            created += ids([await accept_one(engine, a_job())])
        before = await read(engine, None)
        await commit(caller)
        after = await read_until(engine, before.cursor, len(created) - len(before.entries))
        assert sorted(each.job_id for each in (*before.entries, *after)) == sorted(created)

    @needs("transactions")
    async def test_a_call_that_fails_leaves_the_transaction_as_it_was(
        self, engine: Engine, caller: CallerConnection
    ) -> None:
        await within(engine, caller, before := a_job())
        for wrong in (a_job(priority=9), a_job(queue="a b")):
            with pytest.raises(ConfigurationError):
                await within(engine, caller, a_job(dedupe="x"), a_job(queue=QUEUE), wrong)
        await within(engine, caller, after := a_job(dedupe="x"))
        await commit(caller)
        await engine.catch_up()
        found = (await engine.find(JobFilter())).jobs
        assert ids(list(found)) == [after.id, before.id]
