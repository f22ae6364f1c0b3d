"""Moving from SQLite to PostgreSQL: batches and the ledgers of schedules go along."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.engines.postgres.steps import fresh, opened
from tests.harness.servers.databases import Databases
from trellis import schedules
from trellis.core.commands import Cancel
from trellis.core.policy import DEFAULT_POLICY, Policy
from trellis.core.states import State
from trellis.engines.audit import By
from trellis.engines.port import Engine
from trellis.engines.postgres import PostgresEngine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import JobFilter
from trellis.operations.transfer import Endpoint, Moved, move
from trellis.testing.builders import SERVICE, a_declaration, a_demand, a_job
from trellis.testing.clock import ManualClock
from trellis.testing.conformance import batches as steps
from trellis.testing.conformance.helpers import a_session, accept_one, claim, claim_one, settle

pytestmark = pytest.mark.on_postgres(18)


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


@pytest.fixture
async def target(url: str) -> AsyncIterator[PostgresEngine]:
    async with opened(url) as engine:
        yield engine


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "jobs.db")
    await engine.open()
    yield engine
    await engine.close()


async def carry(source: Engine, target: Engine, *, history: bool = False) -> Moved:
    """Move two rows at a time."""
    ends = Endpoint(source, "file"), Endpoint(target, "server")
    return await move(*ends, By("mia"), history=history, batch_size=2)


async def work(engine: Engine, number: int, *types: str) -> None:
    """Complete some jobs in a session that is closed then."""
    session = await a_session(engine)
    for taken in await claim(engine, session, a_demand(*types), limit=number):
        await steps.end(engine, taken)
    await engine.close_session(session)


async def test_a_batch_goes_on_at_the_target_and_fires_once(
    source: SqliteEngine, target: PostgresEngine
) -> None:
    new, members = await steps.opened(source, 3)
    await work(source, 1)
    await source.seal_batch(new.id)
    moved = await carry(source, target)
    assert (moved.states, moved.left) == ({"completed": 1, "pending": 2}, 0)
    before, after = [await steps.status(each, new) for each in (source, target)]
    assert after.batch._replace(row=0, sealed_at=0) == before.batch._replace(row=0, sealed_at=0)
    assert (after.batch.state, after.counts, after.finished) == ("sealed", before.counts, 1)
    await work(target, 1)
    assert await steps.fan_ins(target) == []
    await work(target, 1)
    assert len(await steps.fan_ins(target)) == 1
    results = [(each.record.definition.id, each.result) for each in await target.members(new.id)]
    assert results == [(each.definition.id, "1") for each in members]


async def test_a_batch_does_not_finish_while_members_are_still_to_come(
    source: SqliteEngine, target: PostgresEngine
) -> None:
    new, _ = await steps.opened(source, 3)
    await source.seal_batch(new.id)
    exporter, importer = source.exporter(), target.importer()
    seal = await exporter.seal(await importer.instance(), "server")
    await importer.import_rows(
        "batches", f"{seal[0]}/batches", 0, await exporter.rows("batches", 0, 9)
    )
    page = await exporter.batch(0, 2, [State.PENDING], whole=True)
    await importer.import_batch(f"{seal[0]}/waiting", page)
    await work(target, 2)
    assert await target.finish_batches(9) == 0
    assert (await steps.status(target, new)).batch.state == "open"
    assert (await carry(source, target)).copied == 1  # the interrupted move goes on
    assert await steps.fan_ins(target) == []
    await work(target, 1)
    assert len(await steps.fan_ins(target)) == 1


async def test_a_batch_whose_members_ended_during_the_move_fires_at_its_end(
    source: SqliteEngine, target: PostgresEngine
) -> None:
    new, _ = await steps.opened(source, 1)
    await source.seal_batch(new.id)
    exporter, importer = source.exporter(), target.importer()
    seal = await exporter.seal(await importer.instance(), "server")
    await importer.import_rows(
        "batches", f"{seal[0]}/batches", 0, await exporter.rows("batches", 0, 9)
    )
    page = await exporter.batch(0, 9, [State.PENDING], whole=True)
    await importer.import_batch(f"{seal[0]}/waiting", page)
    await work(target, 1)
    for _ in range(2):
        await carry(source, target)
        assert len(await steps.fan_ins(target)) == 1
    assert (await steps.status(target, new)).batch.state == "finished"


@pytest.mark.parametrize(("policy", "state"), [(DEFAULT_POLICY, "retry"), (steps.ONCE, "dead")])
async def test_members_go_along_while_their_fan_in_job_may_read_them(
    source: SqliteEngine, target: PostgresEngine, policy: Policy, state: str
) -> None:
    new, _ = await steps.opened(source, 2, then=steps.THEN._replace(policy=policy))
    done, _ = await steps.opened(source, 2)
    for batch in (new, done):
        await source.seal_batch(batch.id)
    await work(source, 9)
    waits, over = await steps.fan_ins(source)
    session = await a_session(source)
    taken = await claim(source, session, a_demand("report"))
    await steps.end(source, taken[1])
    await source.close_session(session)
    with pytest.raises(Exception, match="active"):
        await carry(source, target)
    await steps.end(source, taken[0], State.DEAD)
    moved = await carry(source, target)
    assert (moved.states, moved.left) == ({"completed": 2, state: 1}, 3)
    assert len(await target.members(new.id)) == 2
    assert (await steps.status(target, new)).batch.fan_in == waits.definition.id
    assert await target.members(done.id) == []
    assert (await steps.status(target, done)).batch.fan_in == over.definition.id
    await carry(source, target, history=True)
    assert len(await target.members(done.id)) == 2
    assert (await target.count(JobFilter())).total == 6


async def test_open_cancelled_and_nested_batches_and_linked_members_go_along(
    source: SqliteEngine, target: PostgresEngine
) -> None:
    linked = await accept_one(source, a_job(dedupe="d"))
    outer, _ = await steps.opened(source, 0)
    inner, _ = await steps.opened(source, 1, parent=outer.id, then=None)
    await source.create([steps.member_of(outer, dedupe="d")])
    gone, _ = await steps.opened(source, 1)
    await source.cancel_batch(gone.id, By("ann"))
    await source.seal_batch(inner.id)
    await carry(source, target)
    states = {
        name: (await steps.status(target, each)).batch.state
        for name, each in (("outer", outer), ("inner", inner), ("gone", gone))
    }
    assert states == {"outer": "open", "inner": "sealed", "gone": "cancelled"}
    assert [each.new.id for each in (await steps.status(target, outer)).children] == [inner.id]
    (due,) = (await target.due("batches", 9)).jobs
    assert due.record.definition.relations is not None
    assert due.record.definition.relations.batch == gone.id
    session = await a_session(target)
    await settle(target, due.record, Cancel())
    await target.seal_batch(outer.id)
    assert await steps.fan_ins(target) == []
    taken = await claim_one(target, session)
    assert taken.definition.id == linked.definition.id
    await steps.end(target, taken)
    await steps.end(target, await claim_one(target, session))
    (fan_in,) = await steps.fan_ins(target)
    assert (await steps.status(target, outer)).batch.fan_in == fan_in.definition.id
    assert (await steps.status(target, gone)).batch.finished_at is not None


async def test_the_ledgers_of_schedules_go_along_once(
    target: PostgresEngine, tmp_path: Path
) -> None:
    clock = ManualClock()
    source = SqliteEngine(tmp_path / "jobs.db", clock=clock)
    await source.open()
    declared = [a_declaration("a", missed="all"), a_declaration("b", paused=True)]
    await schedules.declare_schedules(source, SERVICE, declared, lambda _: True)
    clock.advance("5m")
    await schedules.fire_due(source)
    ledgers = [await source.slots(SERVICE, name) for name in ("a", "b")]
    assert [len(each) for each in ledgers] == [5, 5]
    stored = await source.schedules()
    for history in (False, True):
        await carry(source, target, history=history)
        assert [await target.slots(SERVICE, name) for name in ("a", "b")] == ledgers
        found = await target.schedules()
        assert found == [each._replace(version=1) for each in stored]
    await source.close()
