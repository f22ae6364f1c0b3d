"""Durability: what survives an engine object, and what several objects see of each other."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import asyncio

from trellis.core.commands import Cancel
from trellis.core.durations import SECOND
from trellis.core.states import State
from trellis.engines.port import Engine
from trellis.engines.values import (
    Accepted,
    Conflict,
    Item,
    JobFilter,
    LogLine,
    Note,
    Phase,
    QueueSettings,
)
from trellis.testing.builders import QUEUE, SERVICE, a_job, a_keyed_job, complete, fence_of
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.helpers import (
    IN_TURN,
    a_session,
    accept,
    accept_one,
    check_journals,
    claim,
    claim_one,
    decided,
    holders,
    ids,
    renew,
    settle,
    start,
    the,
)
from trellis.testing.conformance.suite import Another, EngineSuite, needs


class TestOpen(EngineSuite):
    """An engine can be opened again, and migrated at any time."""

    async def test_opening_twice_is_fine(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job())
        await engine.open()
        assert await the(engine, record.definition.id) == record

    async def test_migrating_what_is_up_to_date_changes_nothing(self, engine: Engine) -> None:
        record = await accept_one(engine, a_job())
        planned = await engine.migrate(dry_run=True)
        assert planned.before == planned.after
        assert not planned.scripts
        assert await engine.migrate() == planned
        assert await the(engine, record.definition.id) == record


class TestDurability(EngineSuite):
    """Acknowledged writes are there when the engine is opened again."""

    @needs("durable")
    async def test_everything_is_there_after_the_engine_was_closed(
        self, engine: Engine, another: Another
    ) -> None:
        session = await a_session(engine)
        taken = await start(engine, session, a_keyed_job("user/7", IN_TURN))
        waiting = await accept_one(engine, a_keyed_job("user/7", IN_TURN, dedupe="d"))
        ended = await start(engine, session, a_job(idempotency_key="k"))
        bodies = (LogLine("info", "x"), Phase("p"), Item("a", "failed"))
        row, fence = ended.definition.row, fence_of(ended)
        await engine.note([Note(row, 1, fence, body) for body in bodies])
        ended = await settle(engine, ended, complete(ended, "7"))
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, draining=True))
        history = await engine.journal(ended.definition.id)
        activity = await engine.activity(ended.definition.id)
        items = await engine.items(ended.definition.id)
        await engine.close()

        again = await another()
        loaded = await again.load(ids([taken, waiting, ended]))
        assert loaded.records == (taken, waiting, ended)
        assert await again.journal(ended.definition.id) == history
        assert await again.activity(ended.definition.id) == activity
        assert await again.items(ended.definition.id) == items != []
        assert [line.message for line in await again.logs(ended.definition.id)] == ["x"]
        assert [each.result for each in await again.outcomes(ended.definition.id)] == ["7"]
        assert await holders(again, "user/7") == ids([taken])
        assert await again.queue_settings() == [QueueSettings(SERVICE, QUEUE, draining=True)]
        await check_journals(again)

    @needs("durable")
    async def test_a_session_outlives_the_engine_object_that_opened_it(
        self, engine: Engine, another: Another, clock: ManualClock
    ) -> None:
        session = await a_session(engine, "30s")
        taken = await start(engine, session, a_job())
        await engine.close()
        again = await another()
        clock.advance("29s")
        await renew(again, session, taken)
        await settle(again, taken, complete(taken))
        await check_journals(again)


class TestSharedStore(EngineSuite):
    """Several engine objects on one store behave like one."""

    @needs("processes")
    async def test_what_one_stores_the_other_sees(self, engine: Engine, another: Another) -> None:
        other = await another()
        record = await accept_one(engine, a_job())
        assert await the(other, record.definition.id) == record
        taken = await claim_one(other, await a_session(other))
        assert await the(engine, record.definition.id) == taken
        await settle(engine, taken, complete(taken))
        assert (await the(other, record.definition.id)).head.state is State.COMPLETED

    @needs("processes")
    async def test_a_job_is_claimed_by_one_of_them_alone(
        self, engine: Engine, another: Another
    ) -> None:
        engines = [engine, await another(), await another()]
        created = await accept(engine, *(a_job() for _ in range(30)))
        sessions = [await a_session(each) for each in engines]

        async def take_all(place: int) -> list[str]:
            taken: list[str] = []
            while records := await claim(engines[place], sessions[place], limit=3):
                taken += ids(records)
            return taken

        shares = await asyncio.gather(*(take_all(place) for place in range(3)))
        assert sorted(each for share in shares for each in share) == sorted(ids(created))

    @needs("processes")
    async def test_a_key_is_exclusive_across_all_of_them(
        self, engine: Engine, another: Another
    ) -> None:
        other = await another()
        await accept(engine, *(a_keyed_job("user/7", IN_TURN) for _ in range(2)))
        taken = await claim_one(engine, await a_session(engine))
        session = await a_session(other)
        assert await claim(other, session) == []
        await settle(engine, taken, complete(taken))
        assert len(await claim(other, session)) == 1

    @needs("processes")
    async def test_a_decision_made_on_one_conflicts_with_a_change_on_the_other(
        self, engine: Engine, another: Another
    ) -> None:
        other = await another()
        taken = await start(engine, await a_session(engine), a_job())
        late = await decided(engine, taken, complete(taken))
        asked = await settle(other, taken, Cancel())
        assert await engine.commit([late]) == [Conflict(asked)]

    @needs("processes")
    async def test_the_same_job_sent_to_both_is_stored_once(
        self, engine: Engine, another: Another
    ) -> None:
        other = await another()
        new = a_job(idempotency_key="k", dedupe="d", delay=SECOND)
        one, two = await asyncio.gather(engine.create([new]), other.create([new]))
        assert one == two == [Accepted(new.id)]
        assert len((await engine.find(JobFilter())).jobs) == 1

    @needs("processes")
    async def test_settings_of_one_hold_for_the_other(
        self, engine: Engine, another: Another
    ) -> None:
        other = await another()
        await accept_one(engine, a_job())
        session = await a_session(other)
        await engine.set_queue(QueueSettings(SERVICE, QUEUE, paused=True))
        assert await claim(other, session) == []
        await other.set_queue(QueueSettings(SERVICE, QUEUE))
        assert len(await claim(engine, session)) == 1
