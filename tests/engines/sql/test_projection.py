"""A projection has what the store has whose events it is made from, however they come in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path
from random import Random

import pytest

from trellis.core.commands import Cancel, Complete, Dismiss, Fail, Retry
from trellis.core.durations import SECOND
from trellis.core.events import EventKind
from trellis.core.fold import fold
from trellis.core.job import Failure, JobRecord
from trellis.core.policy import Policy
from trellis.core.retry import Retry as RetryPolicy
from trellis.core.states import LIVE, State
from trellis.engines.audit import AuditFilter, By, Change
from trellis.engines.contracts import DeclaredType
from trellis.engines.memory import MemoryEngine
from trellis.engines.port import Engine
from trellis.engines.projection import (
    Place,
    Presence,
    Projected,
    ProjectedAudit,
    ProjectedEvent,
    ProjectedNote,
    ProjectedRemoval,
)
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import (
    Begun,
    Heartbeat,
    Item,
    JobFilter,
    LogLine,
    NoteBody,
    Phase,
    Progress,
    SessionRecord,
    WorkerInfo,
)
from trellis.testing import ManualClock
from trellis.testing.builders import a_job, fence_of
from trellis.testing.conformance.helpers import a_session, accept, accept_one, settle, start
from trellis.testing.model.side import Side
from trellis.testing.model.steps import step_for

STREAM = "JOBS"
#: The numbers of messages.
_NUMBERS = count(1000)
BOOM = Failure("exception", "boom")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def source(clock: ManualClock) -> AsyncIterator[MemoryEngine]:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def target(clock: ManualClock, tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "jobs.db", clock=clock)
    await engine.open()
    yield engine
    await engine.close()


async def records(engine: Engine) -> list[JobRecord]:
    """Return all jobs, the newest first."""
    found: list[JobRecord] = []
    after = None
    while True:
        page = await engine.find(JobFilter(), after=after, limit=200)
        found += page.jobs
        if page.next_after is None:
            return found
        after = page.next_after


async def events_of(engine: Engine) -> list[Projected]:
    """Return the events of all jobs as a stream has them: by job, then by version."""
    found: list[Projected] = []
    for definition, _ in reversed(await records(engine)):
        journal = [event for event in await engine.journal(definition.id) if event.version]
        outcomes = {each.generation: each for each in await engine.outcomes(definition.id)}
        for number, event in enumerate(journal, 1):
            head = fold(journal[:number])
            assert head is not None
            is_end = head.state not in LIVE and event.kind is not EventKind.DISMISSED
            outcome = outcomes[head.generation] if is_end else None
            found.append(
                ProjectedEvent(
                    next(_NUMBERS),
                    event,
                    JobRecord(definition, head),
                    definition.policy,
                    outcome and outcome.started_at,
                    outcome and outcome.result,
                    is_dependent=event.version == 1 and definition.relations is not None
                    and definition.relations.payload_from is not None,
                )
            )  # fmt: skip
    return found


async def same(one: Engine, two: Engine) -> None:
    """Check that two engines have the same jobs, journals, outcomes and timers."""
    expected = await records(one)
    assert await records(two) == expected
    for definition, _ in expected:
        journal = [event for event in await one.journal(definition.id) if event.version]
        assert await two.journal(definition.id) == journal
        assert await two.outcomes(definition.id) == await one.outcomes(definition.id)
    groups = (await one.count(JobFilter(), "state", "type", "queue", "error")).combinations
    assert (await two.count(JobFilter(), "state", "type", "queue", "error")).combinations == groups
    due = {each.record.definition.id for each in (await one.due("jobs", 1000)).jobs}
    assert {each.record.definition.id for each in (await two.due("jobs", 1000)).jobs} >= due


def at(sequence: int) -> Place:
    """Return a place in the stream."""
    return Place(sequence, stream_id=1)


async def store(engine: SqliteEngine, changes: Sequence[Projected], size: int = 1000) -> None:
    """Project changes in pages of this size."""
    projection = engine.projection()
    for start_at in range(0, len(changes), size):
        page = changes[start_at : start_at + size]
        assert await projection.project(STREAM, at(start_at), at(start_at + len(page)), page)


@pytest.mark.parametrize("seed", range(8))
async def test_random_lives_are_projected_as_they_were(
    source: MemoryEngine, target: SqliteEngine, clock: ManualClock, seed: int
) -> None:
    side, dice = Side(source, clock, source.capabilities), Random(seed)
    await side.open_session(60 * SECOND)
    for _ in range(250):
        await step_for(dice.randrange(2**24)).on(side)
    changes = await events_of(source)
    assert len(changes) > 50
    await store(target, changes, dice.choice((1, 7, 1000)))
    await same(source, target)


async def test_a_page_is_stored_once_whoever_brings_it(
    source: MemoryEngine, target: SqliteEngine
) -> None:
    await accept(source, a_job(), a_job())
    changes = await events_of(source)
    one, two = target.projection(), target.projection()
    assert await one.place(STREAM) is None
    assert await one.project(STREAM, at(0), at(2), changes)
    assert not await two.project(STREAM, at(0), at(2), changes)
    found = await two.place(STREAM)
    assert found is not None
    assert found._replace(rebuilt_at=0) == at(2)
    assert not await two.project(STREAM, Place(2, stream_id=2), at(3), changes)
    assert not await two.erase(STREAM, at(1))
    await same(source, target)


async def test_an_event_that_comes_again_changes_nothing(
    source: MemoryEngine, target: SqliteEngine
) -> None:
    taken = await start(source, await a_session(source), a_job())
    await settle(source, taken, Complete(fence_of(taken), '{"n":1}'))
    changes = await events_of(source)
    await store(target, [*changes, changes[1], changes[0], *changes])
    await same(source, target)


async def test_a_page_before_its_turn_is_refused_and_changes_nothing(
    source: MemoryEngine, target: SqliteEngine
) -> None:
    await accept_one(source, a_job())
    assert not await target.projection().project(STREAM, at(5), at(6), await events_of(source))
    assert await records(target) == []


async def test_a_second_end_of_a_generation_keeps_the_result_of_the_first(
    source: MemoryEngine, target: SqliteEngine, clock: ManualClock
) -> None:
    session = await a_session(source)
    once = Policy(retry=RetryPolicy.never())
    dead = await start(source, session, a_job(policy=once))
    dead = await settle(source, dead, Fail(fence_of(dead), BOOM, started_at=clock.now()))
    clock.advance("1s")
    await settle(source, dead, Dismiss())
    failed = await start(source, session, a_job(policy=once))
    failed = await settle(source, failed, Fail(fence_of(failed), BOOM, retryable=False))
    await settle(source, failed, Retry())
    await store(target, await events_of(source), 1)
    await same(source, target)
    clock.advance("400d")
    assert await target.prune(10) >= 1  # the dismissed one, and not the one that waits again
    left = await records(target)
    assert [each.head.state for each in left] == [State.PENDING]


async def test_a_removed_job_is_gone_and_its_id_can_come_again_in_the_same_page(
    source: MemoryEngine, target: SqliteEngine, clock: ManualClock
) -> None:
    new = a_job()
    ended = await settle(source, await accept_one(source, new), Cancel())
    first = await events_of(source)
    await source.remove([new.id])
    again = await accept_one(source, new)
    assert again.definition.row != ended.definition.row
    how = (new.id, new.service, new.type, State.CANCELLED, clock.now())
    removal = ProjectedRemoval(next(_NUMBERS), ended.definition.row, *how)
    await store(target, [*first, removal, *await events_of(source)])
    await same(source, target)
    await target.projection().project(
        STREAM, at(4), at(5), [ProjectedRemoval(next(_NUMBERS), again.definition.row, *how)]
    )
    assert (await target.load([new.id])).removed == {new.id}


async def test_what_attempts_report_is_read_back(
    source: MemoryEngine, target: SqliteEngine, clock: ManualClock
) -> None:
    policy = Policy(activity_timeout=10 * SECOND)
    taken = await start(source, await a_session(source), a_job(policy=policy))
    row, fence, job_id = taken.definition.row, fence_of(taken), taken.definition.id
    changes = await events_of(source)
    clock.advance("5s")
    bodies: tuple[NoteBody, ...] = (
        Begun(clock.now()), Phase("one"), Progress(1, 2), Item("a", "failed", "x", "one"),
        LogLine("info", "line"), Heartbeat(),
    )  # fmt: skip
    notes = [
        ProjectedNote(100 + number, row, clock.now(), 1, fence, body)
        for number, body in enumerate(bodies)
    ]
    await store(target, [*changes, *notes, *notes])
    activity = await target.activity(job_id)
    assert activity is not None
    assert (activity.began_at, activity.seen_at) == (clock.now(), clock.now())
    assert (activity.phase, activity.progress) == ("one", Progress(1, 2))
    assert [each.item for each in await target.items(job_id)] == [Item("a", "failed", "x", "one")]
    assert [(each.number, each.message) for each in await target.logs(job_id)] == [(104, "line")]
    clock.advance("6s")  # silent since the claim, but not since the note
    assert (await target.due("jobs", 10)).jobs == ()
    clock.advance("5s")
    assert len((await target.due("jobs", 10)).jobs) == 1


async def test_entries_of_the_audit_sessions_types_and_presence_are_kept(
    source: MemoryEngine, target: SqliteEngine, clock: ManualClock
) -> None:
    session = await a_session(source)
    taken = await start(source, session, a_job())
    info = WorkerInfo("worker-1", "host-1", 4242, "0.1.0")
    known = SessionRecord(session, info, clock.now(), clock.now(), SECOND, False, None, 1)
    declared = DeclaredType("shop", "invoice", "invoices", Policy(timeout=SECOND), 2)
    entry = ProjectedAudit(9, clock.now(), Change("queue.pause", "shop/mails"), By("ann", "load"))
    heard = Presence("shop", "invoice", "i1", clock.now(), 4, "1.0")
    await store(target, [*await events_of(source), known, declared, entry, heard, heard])
    assert (await target.identify([session]))[session].name == "worker-1"
    assert (await target.find(JobFilter(worker="worker-1"))).jobs == (taken,)
    assert await target.declared_types() == [declared]
    assert [each.by for each in await target.audit(AuditFilter())] == [By("ann", "load")]
    projection = target.projection()
    assert await projection.presences(clock.now()) == [heard]
    assert await projection.presences(clock.now() + 1) == []


async def test_an_erased_projection_begins_again(
    source: MemoryEngine, target: SqliteEngine, clock: ManualClock
) -> None:
    taken = await start(source, await a_session(source), a_job())
    await settle(source, taken, Complete(fence_of(taken)))
    await accept(source, a_job(), a_job(idempotency_key="once"))
    heard = Presence("shop", "invoice", "i1", clock.now())
    changes = [*await events_of(source), heard]
    await store(target, changes)
    projection = target.projection()
    await projection.erase()
    assert await projection.place(STREAM) is None
    assert await records(target) == []
    assert await projection.presences(0) == []
    await store(target, changes)
    await same(source, target)
