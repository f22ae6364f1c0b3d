"""The projection knows batches, links, keys and slots as the streams do."""

from __future__ import annotations

import secrets

import pytest

from tests.admin.conftest import Serving
from trellis import schedules as control
from trellis.admin.projector import whole
from trellis.admin.runtime import AdminRuntime
from trellis.core import schedules as rules
from trellis.core.batches import NewBatch
from trellis.core.commands import Cancel, Complete, Fail, Retry
from trellis.core.durations import SECOND, Instant, micros
from trellis.core.job import Dedupe, Failure, JobRecord, NewJob, Prerequisite, Relations
from trellis.core.policy import KeyPolicy, Policy, Retention
from trellis.engines.audit import By
from trellis.engines.batches import BatchFilter
from trellis.engines.jetstream.answers import WRITE
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.projection import PastRetention
from trellis.engines.values import Coalesced, JobFilter, Note, Progress
from trellis.testing import ManualClock
from trellis.testing.builders import (
    SERVICE,
    a_declaration,
    a_job,
    a_job_id,
    a_keyed_job,
    fence_of,
)
from trellis.testing.conformance.helpers import (
    a_session,
    accept,
    accept_one,
    settle,
    start,
    the,
)

BOOM = Failure("exception", "boom")
SHORT = Policy(retention=Retention(completed=SECOND, failed=SECOND, dead=SECOND, other=SECOND))


def _member(batch: NewBatch, **parts: object) -> NewJob:
    return a_job(relations=Relations(batch=batch.id), **parts)  # type: ignore[arg-type]


async def _batch(engine: Engine, **parts: str) -> NewBatch:
    new = NewBatch(a_job_id(), SERVICE, then=a_job(type="report"), **parts)  # type: ignore[arg-type]
    assert await engine.open_batch(new) is not None
    return new


async def _ended(engine: Engine, record: JobRecord) -> JobRecord:
    return await settle(engine, record, Cancel())


async def test_batches_and_members_are_as_in_the_stream(
    engine: Engine, runtime: AdminRuntime, tables: Engine, clock: ManualClock
) -> None:
    kind = f"kind-{secrets.token_hex(4)}"
    outer = await _batch(engine)
    inner = await _batch(engine, parent=outer.id)
    session = await a_session(engine)
    done = await start(engine, session, _member(inner, type=kind))
    await settle(engine, done, Complete(fence_of(done), '{"n": 1}'))
    one = Dedupe("one", "unfinished")
    failing = await start(engine, session, _member(outer, type=kind, dedupe=one))
    assert isinstance((await engine.create([_member(inner, type=kind, dedupe=one)]))[0], Coalesced)
    await settle(engine, failing, Fail(fence_of(failing), BOOM, retryable=False))
    revived = await settle(engine, await the(engine, failing.definition.id), Retry())
    await engine.seal_batch(inner.id)
    clock.advance("1s")
    await engine.cancel_batch(outer.id, By("ann", "a test"))
    names = [outer.id, inner.id]
    assert await runtime.answers.catch_up()
    for batch in names:
        assert await tables.members(batch) == await engine.members(batch)
        assert await tables.batch(batch) == await engine.batch(batch)
        where = JobFilter(batch=batch)
        members = [each.record for each in reversed(await engine.members(batch))]
        assert list((await engine.find(where)).jobs) == members
        assert (await engine.count(where, "state")).total == len(members)
    assert await tables.batch_statuses(names) == await engine.batch_statuses(names)
    assert revived.definition.id in {
        each.record.definition.id for each in await tables.members(inner.id)
    }
    listed = await engine.batches(BatchFilter())
    assert [each.new.id for each in listed] == names[::-1]
    assert [each.new.id for each in await engine.batches(BatchFilter("cancelled"))] == [outer.id]


async def test_members_are_known_although_their_batch_changes_later_in_the_page(
    engine: Engine, tables: Engine, serving: Serving
) -> None:
    one = Dedupe("one", "unfinished")
    first, second = await _batch(engine), await _batch(engine)
    await accept_one(engine, _member(first, dedupe=one))
    assert isinstance((await engine.create([_member(second, dedupe=one)]))[0], Coalesced)
    await engine.seal_batch(first.id)
    async with serving(tables) as runtime:
        assert await runtime.answers.catch_up()
        for batch in (first.id, second.id):
            assert len(await tables.members(batch)) == 1
            assert await tables.members(batch) == await engine.members(batch)


async def test_links_are_as_in_the_stream(
    engine: Engine, runtime: AdminRuntime, tables: Engine
) -> None:
    first, second = await accept(engine, a_job(), a_job())
    names = [each.definition.id for each in (first, second)]
    waits = await accept_one(engine, a_job(after=tuple(map(Prerequisite, names))))
    await _ended(engine, first)
    ids = [*names, waits.definition.id]
    assert await runtime.answers.catch_up()
    assert len(await tables.links(ids)) == 2
    assert await tables.links(ids) == await engine.links(ids)


async def test_keys_are_as_in_the_stream_and_only_holders_of_slots_are_claimable(
    engine: Engine, runtime: AdminRuntime, tables: Engine, clock: ManualClock
) -> None:
    rule, kind = KeyPolicy("k", active=1, queued=None), f"kind-{secrets.token_hex(4)}"
    holder = await start(engine, await a_session(engine), a_keyed_job("k", rule, type=kind))
    await accept(engine, *(a_keyed_job("k", rule, type=kind) for _ in range(3)))
    clock.advance("1s")
    last = await accept_one(engine, a_job(type=kind))
    ahead = (last.definition.id, [f"{SERVICE}/{kind}"], 100)
    assert await engine.ahead(*ahead) == {}
    assert await tables.keys(SERVICE, kind) == await engine.keys(SERVICE, kind)
    await settle(engine, holder, Complete(fence_of(holder), "null"))
    assert sum((await engine.ahead(*ahead)).values()) == 1
    assert await tables.keys(SERVICE, kind) == await engine.keys(SERVICE, kind)


async def test_slots_of_schedules_are_as_in_the_stream(
    engine: Engine, runtime: AdminRuntime, tables: Engine, clock: ManualClock
) -> None:
    await control.declare_schedules(engine, SERVICE, [a_declaration(missed="all")], lambda _: False)
    clock.advance("3m")
    schedule = await control.find_schedule(engine, SERVICE, "nightly")
    step = rules.decide_slots(schedule, await engine.now(), ())
    assert await engine.advance_schedule(step)
    assert await runtime.answers.catch_up()
    slots = await tables.slots(SERVICE, "nightly")
    assert len(slots) == 3
    assert slots == await engine.slots(SERVICE, "nightly")


async def test_facts_and_reports_are_as_sqlite_would_answer(
    engine: Engine, runtime: AdminRuntime, tables: Engine, clock: ManualClock
) -> None:
    session = await a_session(engine)
    job = await start(engine, session, a_job())
    clock.advance("1s")
    note = Note(job.definition.row, job.head.claims, fence_of(job), Progress(1, 2))
    await engine.note([note])
    await settle(engine, job, Complete(fence_of(job), "[1]", started_at=clock.now()))
    (facts,) = (await engine.facts([job.definition.id])).values()
    assert (facts.started_at, facts.result) == (clock.now(), "[1]")
    assert facts.updated_at == clock.now()
    assert facts.worker is not None


async def test_jobs_past_retention_are_found_without_those_that_others_need(
    engine: Engine, runtime: AdminRuntime, clock: ManualClock
) -> None:
    kept = await _batch(engine)
    needed, member, over = await accept(
        engine, a_job(policy=SHORT), _member(kept, policy=SHORT), a_job(policy=SHORT)
    )
    follower = await accept_one(
        engine, a_job(after=(Prerequisite(needed.definition.id, "finished"),), delay=micros("1d"))
    )
    ended = [
        await _ended(engine, await the(engine, each.definition.id))
        for each in (needed, member, over)
    ]
    assert await runtime.answers.catch_up()
    assert await runtime.projection.past_retention(clock.now(), 10) == []
    clock.advance("2s")
    assert await runtime.projection.past_retention(clock.now(), 10) == [_past(ended[2])]
    assert await engine.prune(10) == 1
    assert (await engine.load([over.definition.id])).records == (None,)
    needed_ids = [needed.definition.id, member.definition.id]
    assert (await engine.load(needed_ids)).records == tuple(ended[:2])
    # A follower that has ended needs nothing, but it is kept for its own retention.
    await _ended(engine, await the(engine, follower.definition.id))
    assert await runtime.answers.catch_up()
    assert await runtime.projection.past_retention(clock.now(), 10) == [_past(ended[0])]
    assert await engine.prune(10) == 1
    assert (await engine.load(needed_ids)).records == (None, ended[1])


def _past(record: JobRecord) -> PastRetention:
    """Return an ended job as the projection names it once retention keeps it no longer."""
    return PastRetention(record.definition.id, record.head.version, SERVICE)


async def test_a_job_that_has_changed_since_the_projection_was_read_is_kept(
    engine: Engine, runtime: AdminRuntime, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await start(engine, await a_session(engine), a_job(policy=SHORT))
    await settle(engine, job, Fail(fence_of(job), BOOM, retryable=False))
    clock.advance("2s")
    read = runtime.projection.past_retention

    async def read_then_change(now: Instant, limit: int) -> list[PastRetention]:
        found = await read(now, limit)
        revived = await settle(engine, await the(engine, job.definition.id), Retry())
        await _ended(engine, revived)
        return found

    monkeypatch.setattr(runtime.projection, "past_retention", read_then_change)
    assert await engine.prune(10) == 0
    assert (await engine.load([job.definition.id])).records != (None,)


async def test_a_full_page_ends_with_a_whole_write(
    engine: Engine, runtime: AdminRuntime, subjects: Subjects, link: Link
) -> None:
    rule = KeyPolicy("k", active=1, queued=None)
    for _ in range(5):
        await accept(engine, *(a_keyed_job("k", rule) for _ in range(3)))
    stored = await link.following(subjects.jobs, f"{subjects.prefix}.jobs.>", 1)
    names = [got.headers[WRITE] for got in stored]
    for size in range(1, len(stored) + 1):
        page = whole(stored[:size], size)
        left = names[len(page) :]
        is_one_write = len(set(names[:size])) == 1
        assert page
        assert is_one_write or page[-1].headers[WRITE] not in left
    assert whole(stored, len(stored) + 1) == stored
