"""Two who change the same jobs at the same time: who waited sees what the other one did."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from tests.engines.postgres.steps import PATIENCE, REVIVE, during, fresh, opened, waits
from tests.harness.servers.databases import Databases
from trellis import control
from trellis.core.commands import Command, Dismiss, Fail, Replay
from trellis.core.durations import SECOND
from trellis.core.job import Failure, JobRecord, NewJob
from trellis.core.keys import hash_key
from trellis.core.lifecycle import Transition, decide
from trellis.core.policy import KeyPolicy, Policy
from trellis.core.retry import Retry
from trellis.engines.postgres import PostgresEngine
from trellis.engines.values import Accepted, Conflict, Replaced
from trellis.errors import CommandRejected, ConflictPersists
from trellis.testing.builders import a_demand, a_job, a_keyed_job, a_worker, complete, fence_of

pytestmark = pytest.mark.on_postgres(16, 18)

ONCE = Policy(retry=Retry.never())
LATEST = KeyPolicy("k", queued=1, when_full="replace-oldest")
_LOCK_KEY = "select pg_advisory_xact_lock(hashtextextended('trellis/key/{}', 0));"
_LATER = "update trellis.queue set run_at = run_at + 3600000000 where key_hash is null"


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


async def started(engine: PostgresEngine, new: NewJob) -> JobRecord:
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    await engine.create([new])
    (taken,) = (await engine.claim(session, [a_demand()], 1)).jobs
    return taken


async def dead(engine: PostgresEngine) -> JobRecord:
    taken = await started(engine, a_job(policy=ONCE))
    burnt = Fail(fence_of(taken), Failure("exception", "it burnt"))
    await control.apply_all(engine, [(taken, burnt)], await engine.now())
    (record,) = (await engine.load([taken.definition.id])).records
    assert record is not None
    return record


@pytest.mark.parametrize("command", [Dismiss(), Replay()])
async def test_a_decision_that_waited_for_a_revival_is_refused(url: str, command: Command) -> None:
    async with opened(url) as engine:
        record = await dead(engine)
        decision = decide(record, command, await engine.now())
        assert isinstance(decision, Transition)
        (answer,) = await during(url, REVIVE, engine.commit([decision]))
        (now,) = (await engine.load([record.definition.id])).records
        assert answer == Conflict(now)
        assert now is not None
        assert now.head.state == "pending"


async def test_a_job_that_is_brought_back_meanwhile_is_not_removed(url: str) -> None:
    async with opened(url) as engine:
        record = await dead(engine)
        assert await during(url, REVIVE, engine.remove([record.definition.id])) == ["live"]
        assert (await engine.load([record.definition.id])).records[0] is not None


async def test_a_job_is_brought_back_by_who_never_heard_of_its_lane(url: str) -> None:
    async with opened(url) as early, opened(url) as engine:
        record = await dead(engine)
        after = await control.apply(early, record.definition.id, Replay())
        assert after.head.state == "pending"


async def test_a_job_that_was_put_off_meanwhile_does_not_start_early(url: str) -> None:
    keyed = a_keyed_job("busy", KeyPolicy("k", queued=None, when_full="wait"), delay=1)
    async with opened(url) as engine:
        await engine.create([a_job(delay=1), keyed])
        change = _LOCK_KEY.format(hash_key(keyed.service, keyed.type, "busy")) + _LATER
        await during(url, change, engine.promote(100))
        with psycopg.connect(url) as sql:
            found = sql.execute(
                "select key_hash is null, availability::text from trellis.queue order by 1"
            )
            assert found.fetchall() == [(False, "ready"), (True, "scheduled")]


async def test_no_slot_goes_to_a_job_that_was_replaced_in_a_callers_transaction(url: str) -> None:
    async with opened(url) as engine:
        running = await started(engine, a_keyed_job("k", LATEST))
        waiting, newer = a_keyed_job("k", LATEST), a_keyed_job("k", LATEST)
        assert await engine.create([waiting]) == [Accepted(waiting.id)]
        decision = decide(running, complete(running), await engine.now())
        assert isinstance(decision, Transition)
        with psycopg.connect(url) as caller:
            caller.execute("select 1")
            replaced = engine.create_within(caller, [newer])
            assert replaced == [Replaced(newer.id, waiting.id)]
            settling = asyncio.create_task(engine.commit([decision]))
            async with asyncio.timeout(PATIENCE):
                while not waits(url) and not settling.done():  # noqa: ASYNC110 - only it knows
                    await asyncio.sleep(0)
            caller.commit()
            await settling
        await engine.promote(100)
        session = (await engine.open_session(a_worker(), 30 * SECOND)).id
        (taken,) = (await engine.claim(session, [a_demand()], 5)).jobs
        assert taken.definition.id == newer.id
        with psycopg.connect(url) as sql:
            held = sql.execute("select job from trellis.key_slot").fetchall()
            assert held == [(taken.definition.row,)]


async def test_the_times_of_a_journal_never_go_back_in_a_storm_of_cancels(url: str) -> None:
    async with opened(url) as engine, opened(url) as operator:
        session = (await engine.open_session(a_worker(), 30 * SECOND)).id
        jobs = [a_job(policy=Policy(retry=Retry.fixed(0, attempts=9))) for _ in range(200)]
        await engine.create(jobs)

        async def run_jobs() -> None:
            while taken := (await engine.claim(session, [a_demand()], 7)).jobs:
                boom = Failure("exception", "boom")
                changes = [(each, Fail(fence_of(each), boom)) for each in taken]
                await control.apply_all(engine, changes, await engine.now())

        async def cancel_jobs() -> None:
            for new in jobs:
                with suppress(CommandRejected, ConflictPersists):
                    await control.cancel(operator, new.id, force=True)

        await asyncio.gather(run_jobs(), cancel_jobs())
        for new in jobs:
            times = [event.at for event in await engine.journal(new.id)]
            assert times == sorted(times)
