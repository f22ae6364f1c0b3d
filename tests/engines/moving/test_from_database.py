"""Moving out of PostgreSQL: the seal, and what is refused while workers are active."""

from __future__ import annotations

import psycopg
import pytest

from tests.engines.jetstream.manual import ManualEngine
from tests.engines.postgres.household import inventory
from tests.harness import ROOT
from trellis import control
from trellis.core.commands import Cancel, Complete
from trellis.core.durations import SECOND
from trellis.engines.memory import MemoryEngine
from trellis.engines.postgres import PostgresEngine
from trellis.engines.transfer import Busy
from trellis.engines.values import Accepted, QueueSettings
from trellis.errors import CapabilityMissing, EngineError, MoveRefused
from trellis.operations.transfer import Endpoint, Moved, move
from trellis.testing.builders import a_demand, a_job, a_worker, fence_of

pytestmark = pytest.mark.on_postgres(18)


async def carry(source: PostgresEngine, target: ManualEngine) -> Moved:
    here, there = Endpoint(source, "postgresql://here/db"), Endpoint(target, "nats://there")
    return await move(here, there)


async def test_after_the_seal_nothing_can_be_done_at_the_source_but_looking(
    database: PostgresEngine, database_url: str, streams: ManualEngine
) -> None:
    first = a_job()
    await database.create([first])
    before = await inventory(database)
    await carry(database, streams)
    for attempt in (
        lambda: database.create([a_job()]),
        lambda: database.open_session(a_worker(), 30 * SECOND),
        lambda: control.apply(database, first.id, Cancel("no")),
        lambda: database.set_queue(QueueSettings("shop", "quiet", paused=True)),
    ):
        with pytest.raises(EngineError, match="its jobs were moved to nats://there"):
            await attempt()
    async with await psycopg.AsyncConnection.connect(database_url) as own:
        with pytest.raises(psycopg.errors.RaiseException, match="moved to nats://there"):
            await own.execute("select trellis.enqueue('shop', 'invoice', '{}')")
    assert await inventory(database) == before
    health = await database.health()
    assert health.facts["moved_to"] == "nats://there"
    assert "were moved to nats://there" in health.warnings[0]
    assert list(await inventory(streams)) == [first.id]


async def test_a_source_with_a_live_worker_or_an_active_job_is_refused_and_stays_as_it_is(
    database: PostgresEngine, streams: ManualEngine
) -> None:
    await database.create([a_job()])
    session = (await database.open_session(a_worker("busy-one"), 30 * SECOND)).id
    with pytest.raises(MoveRefused, match=r"1 live worker: busy-one .* workers drain"):
        await carry(database, streams)
    (taken,) = (await database.claim(session, [a_demand()], 1)).jobs
    await database.close_session(session)
    with pytest.raises(MoveRefused, match=taken.definition.id):
        await carry(database, streams)
    assert await database.exporter().seal("there", "there") == Busy(1, 0, 0)
    assert await inventory(streams) == {}
    await control.apply(database, taken.definition.id, Complete(fence_of(taken)))
    assert await database.create([new := a_job()]) == [Accepted(new.id)]
    assert (await carry(database, streams)).copied == 1


async def test_only_engines_that_can_take_part_do(
    database: PostgresEngine, streams: ManualEngine
) -> None:
    await database.create([a_job()])
    memory = MemoryEngine()
    with pytest.raises(CapabilityMissing, match="cannot be moved into memory"):
        await move(Endpoint(database, "here"), Endpoint(memory, "memory://"))
    with pytest.raises(CapabilityMissing, match="cannot be moved out of memory"):
        await move(Endpoint(memory, "memory://"), Endpoint(streams, "there"))
    with pytest.raises(MoveRefused, match="is where the jobs are already"):
        await move(Endpoint(database, "here"), Endpoint(database, "there"))


async def test_the_seal_is_lifted_as_the_guide_says(
    database: PostgresEngine, database_url: str, streams: ManualEngine
) -> None:
    await database.create([a_job()])
    await carry(database, streams)
    guide = (ROOT / "docs" / "guides" / "growing.md").read_text()
    _, _, rest = guide.partition("Of PostgreSQL: `")
    async with await psycopg.AsyncConnection.connect(database_url) as own:
        for statement in rest.partition("`")[0].strip("; ").split(";"):
            await own.execute(statement.encode())
    assert await database.exporter().seal_of() is None
    assert await database.create([new := a_job()]) == [Accepted(new.id)]
