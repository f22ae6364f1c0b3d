"""Queues: pause and drain, the drain of all queues, claims by type."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.admission import Reason
from trellis.core.commands import Release
from trellis.core.durations import SECOND
from trellis.core.states import State
from trellis.engines.operating import Drain, DrainChange
from trellis.engines.port import Engine
from trellis.engines.values import Accepted, Coalesced, JobFilter, QueueSettings, Rejected
from trellis.testing.builders import (
    QUEUE,
    SERVICE,
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
    accept_one,
    claim,
    holders,
    ids,
    settle,
    start,
)
from trellis.testing.conformance.suite import EngineSuite, needs


class TestQueues(EngineSuite):
    """Operators pause, drain and reopen queues."""

    async def test_no_queue_has_settings_at_first(self, engine: Engine) -> None:
        await accept_one(engine, a_job())
        assert await engine.queue_settings() == []

    async def test_settings_are_kept_per_queue_and_service(self, engine: Engine) -> None:
        settings = [
            QueueSettings("depot", QUEUE, paused=True),
            QueueSettings(SERVICE, QUEUE, draining=True),
            QueueSettings(SERVICE, "slow", paused=True, draining=True),
        ]
        for each in reversed(settings):
            await engine.set_queue(each)
        assert await engine.queue_settings() == settings
        reopened = QueueSettings(SERVICE, "slow")
        await engine.set_queue(reopened)
        assert await engine.queue_settings() == [*settings[:2], reopened]

    async def test_nothing_is_claimed_from_a_paused_queue(self, engine: Engine) -> None:
        session = await a_session(engine)
        record = await accept_one(engine, a_job())
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, paused=True))
        assert await claim(engine, session) == []
        await engine.set_queue(QueueSettings(SERVICE, QUEUE))
        assert ids(await claim(engine, session)) == ids([record])

    async def test_no_job_starts_before_its_time_because_its_queue_was_paused(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        session = await a_session(engine)
        record = await accept_one(engine, a_job(delay=10 * SECOND))
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, paused=True))
        assert await claim(engine, session) == []
        await engine.set_queue(QueueSettings(SERVICE, QUEUE))
        assert await claim(engine, session) == []
        clock.advance("10s")
        assert ids(await claim(engine, session)) == ids([record])

    @needs("split_types")
    async def test_other_queues_go_on_while_one_is_paused(self, engine: Engine) -> None:
        await accept_one(engine, a_job(priority=4))
        open_one, elsewhere = await accept(engine, a_job(queue="slow"), a_job(service="depot"))
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, paused=True))
        demands = [
            a_demand(),
            a_demand(TYPE, queue="slow"),
            a_demand(TYPE, service="depot"),
        ]
        taken = await claim(engine, await a_session(engine), *demands)
        assert ids(taken) == ids([open_one, elsewhere])

    async def test_a_paused_queue_still_accepts_and_its_attempts_still_settle(
        self, engine: Engine
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_job())
        back = await start(engine, session, a_job())
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, paused=True))
        await accept_one(engine, a_job())
        done = await settle(engine, taken, complete(taken))
        assert done.head.state is State.COMPLETED
        await settle(engine, back, Release(fence_of(back)))
        assert await claim(engine, session) == []

    async def test_a_paused_queue_hands_slots_on_but_starts_no_job(self, engine: Engine) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job("user/7", IN_TURN))
        waiting = await accept_one(engine, a_keyed_job("user/7", IN_TURN))
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, paused=True))
        await settle(engine, taken, complete(taken))
        assert await holders(engine, "user/7") == ids([waiting])
        assert await claim(engine, session) == []
        await engine.set_queue(QueueSettings(SERVICE, QUEUE))
        assert ids(await claim(engine, session)) == ids([waiting])

    async def test_a_draining_queue_accepts_nothing_new(self, engine: Engine) -> None:
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, draining=True))
        other = a_job(queue="slow")
        keyed = a_keyed_job("user/7", IN_TURN)
        answers = await engine.create([a_job(), other, keyed])
        turned_away = Rejected(Reason.DRAINING, None)
        assert answers == [turned_away, Accepted(other.id), turned_away]
        found = await engine.find(JobFilter())
        assert ids(list(found.jobs)) == [other.id]

    async def test_a_draining_queue_finishes_what_it_has(self, engine: Engine) -> None:
        session = await a_session(engine)
        record = await accept_one(engine, a_job())
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, draining=True))
        (taken,) = await claim(engine, session)
        await settle(engine, taken, Release(fence_of(taken)))
        (again,) = await claim(engine, session)
        done = await settle(engine, again, complete(again))
        assert ids([done]) == ids([record])
        assert done.head.state is State.COMPLETED

    async def test_a_reopened_queue_accepts_again(self, engine: Engine) -> None:
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, draining=True))
        await engine.set_queue(QueueSettings(SERVICE, QUEUE))
        await accept_one(engine, a_job())


ON = Drain(on=True, actor="ann", reason="moving house")
OFF = Drain(on=False, actor="bob")


class TestDrainOfAllQueues(EngineSuite):
    """One switch keeps new jobs out of every queue."""

    async def test_new_jobs_are_kept_out_of_every_queue(self, engine: Engine) -> None:
        await engine.set_drain(ON)
        new = [
            a_job(),
            a_job(service="depot", queue="slow"),
            a_job(tags=(("a", "b"),)),
            a_job(dedupe="x"),
            a_keyed_job("user/7", IN_TURN),
        ]
        turned_away = Rejected(Reason.ALL_DRAINING, None)
        for each in new:
            assert await engine.create([each]) == [turned_away], each
        assert await engine.create(new) == [turned_away] * len(new)
        assert (await engine.find(JobFilter())).jobs == ()
        await engine.set_drain(OFF)
        assert await engine.create(new) == [Accepted(each.id) for each in new]

    async def test_a_known_request_gets_its_answer_meanwhile(self, engine: Engine) -> None:
        plain, marked = a_job(), a_job(idempotency_key="order/7")
        deduped = a_job(dedupe="nightly")
        await accept(engine, plain, marked, deduped)
        await engine.set_drain(ON)
        assert await engine.create([plain]) == [Accepted(plain.id)]
        again = [a_job(idempotency_key="order/7"), a_job(dedupe="nightly"), a_job()]
        assert await engine.create(again) == [
            Coalesced(marked.id, Reason.SAME_IDEMPOTENCY_KEY),
            Coalesced(deduped.id, Reason.SAME_DEDUPE_KEY),
            Rejected(Reason.ALL_DRAINING, None),
        ]

    async def test_workers_go_on_with_the_jobs_that_are_there(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job())
        await engine.set_drain(ON)
        session = await a_session(engine)
        (taken,) = await claim(engine, session)
        await settle(engine, taken, Release(fence_of(taken)))
        (again,) = await claim(engine, session)
        done = await settle(engine, again, complete(again))
        assert (ids([done]), done.head.state) == (ids([record]), State.COMPLETED)

    async def test_every_change_is_kept_and_no_queue_shows_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        assert await engine.drain_changes() == []
        began = clock.now()
        await engine.set_drain(ON)
        clock.advance("1h")
        await engine.set_drain(OFF)
        await engine.catch_up()
        changes = [DrainChange(clock.now(), OFF), DrainChange(began, ON)]
        assert await engine.drain_changes() == changes
        assert await engine.drain_changes(1) == changes[:1]
        assert await engine.queue_settings() == []


class TestQueuesOfTypes(EngineSuite):
    """A claim goes by types; a demand may be narrowed to some queues."""

    async def test_jobs_of_a_type_are_claimed_from_every_queue(self, engine: Engine) -> None:
        jobs = [a_job(queue=name) for name in ("old", "new", "urgent")]
        for new in jobs:
            await accept_one(engine, new)
        taken = await claim(engine, await a_session(engine))
        assert ids(taken) == [new.id for new in jobs]

    @needs("split_types")
    async def test_a_demand_for_some_queues_leaves_the_others(self, engine: Engine) -> None:
        jobs = [a_job(queue=name) for name in ("old", "new", "urgent")]
        for new in jobs:
            await accept_one(engine, new)
        some = a_demand()._replace(queues=("urgent", "old"))
        session = await a_session(engine)
        assert ids(await claim(engine, session, some)) == [jobs[0].id, jobs[2].id]
        assert ids(await claim(engine, session)) == [jobs[1].id]

    async def test_one_limit_holds_over_all_queues_of_a_demand(self, engine: Engine) -> None:
        jobs = [a_job(queue=name) for name in ("old", "new", "urgent")]
        for new in jobs:
            await accept_one(engine, new)
        session = await a_session(engine)
        assert ids(await claim(engine, session, a_demand(limit=2))) == [new.id for new in jobs[:2]]
