"""The queue of an archive while jobs run again and processes prune at once."""

from __future__ import annotations

import asyncio

from tests.engines.jetstream.manual import ManualEngine
from trellis.core.durations import SECOND
from trellis.core.job import JobRecord
from trellis.core.policy import Policy, Retention
from trellis.engines.archive import Archived
from trellis.engines.jetstream.draft import Draft
from trellis.testing.builders import a_demand, a_job, a_worker, complete
from trellis.testing.conformance.helpers import accept, decided

SHORT = Policy(retention=Retention(completed=10 * SECOND))


async def ended(engine: ManualEngine, count: int) -> list[JobRecord]:
    """Return completed jobs, by creation."""
    await accept(engine, *(a_job(policy=SHORT) for _ in range(count)))
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    taken = (await engine.claim(session, [a_demand()], count)).jobs
    await engine.commit([await decided(engine, each, complete(each)) for each in taken])
    loaded = await engine.load([each.definition.id for each in taken])
    return [each for each in loaded.records if each is not None]


async def set_apart(engine: ManualEngine, *records: JobRecord) -> None:
    """Let jobs wait, as `prune` does."""
    draft = Draft(engine._store)
    for each in records:
        current = await draft.job(each.definition.id)
        assert current is not None
        await engine._archiving.add(draft, current)
    await draft.write()


async def waiting(engine: ManualEngine) -> int:
    """Return how many states of waiting jobs are stored."""
    subject = engine._subjects.own("archiving", "*", "r", "*")
    return len(await engine._store.subjects_of(subject))


async def test_what_was_archived_and_removed_leaves_nothing_in_the_queue(
    engine: ManualEngine,
) -> None:
    first, second = await ended(engine, 2)
    await set_apart(engine, second, first)
    assert await engine.archivable("shop", 1) == [first]
    taken = [Archived(each.definition.id, each.head.version) for each in (first, second)]
    assert await engine.remove_archived(taken[:1]) == 1
    assert await engine.archivable("shop", 10) == [second]
    assert await waiting(engine) == 1


async def test_a_job_that_is_gone_is_forgotten_when_the_queue_is_read(
    engine: ManualEngine,
) -> None:
    first, second = await ended(engine, 2)
    await set_apart(engine, first, second)
    assert await engine.remove([first.definition.id]) == ["removed"]
    assert await engine.archivable("shop", 10) == [second]
    assert await waiting(engine) == 1


async def test_two_archivers_at_once_remove_each_job_once(engine: ManualEngine) -> None:
    records = await ended(engine, 5)
    await set_apart(engine, *records)
    taken = [Archived(each.definition.id, each.head.version) for each in records]
    removed = await asyncio.gather(*(engine.remove_archived(taken) for _ in range(3)))
    assert sum(removed) == 5
