"""A projection that is made after upkeep has deleted old versions of states equals one before it.

What stays of a state is its last version, which comes later in the stream than what rests on it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest

from tests.admin.conftest import Serving
from tests.engines.jetstream.manual import ManualEngine
from tests.harness.projections import differences
from trellis.admin import projector
from trellis.admin.export import stream_exporter
from trellis.admin.janitor import Janitor
from trellis.admin.runtime import AdminRuntime
from trellis.core.batches import NewBatch
from trellis.core.commands import Cancel, Command, Complete, Dismiss, Fail, Retry
from trellis.core.durations import SECOND
from trellis.core.job import Dedupe, Failure, JobId, NewJob, Prerequisite, Relations
from trellis.core.policy import KeyPolicy, Policy, Retention
from trellis.core.retry import Retry as RetryPolicy
from trellis.engines.audit import By
from trellis.engines.jetstream import JetStreamEngine
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import Coalesced
from trellis.operations.transfer import Endpoint, move
from trellis.testing import ManualClock
from trellis.testing.builders import SERVICE, a_job, a_job_id, a_keyed_job, fence_of
from trellis.testing.conformance.helpers import a_session, accept, accept_one, settle, start, the

#: So few messages are in a page that a state and what rests on it are pages apart.
_PAGE = 5
_OTHERS = 20
SHORT = Policy(
    retry=RetryPolicy.never(),
    retention=Retention(completed=SECOND, failed=SECOND, dead=SECOND, other=SECOND),
)


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector, "PAGE", _PAGE)


def _member(batch: str, **parts: object) -> NewJob:
    return a_job(relations=Relations(batch=batch), **parts)  # type: ignore[arg-type]


async def _nest(engine: Engine) -> tuple[NewBatch, NewBatch]:
    outer = NewBatch(a_job_id(), SERVICE, "outer", then=a_job(type="report"))
    inner = NewBatch(a_job_id(), SERVICE, "inner", parent=outer.id, then=a_job(type="part"))
    for batch in (outer, inner):
        assert await engine.open_batch(batch) is not None
    return outer, inner


async def _grouped(engine: Engine) -> tuple[NewBatch, list[JobId]]:
    """Store nested batches, some of whose members have ended, with other jobs in between.

    Return the outer one, and its members that wait.
    """
    outer, inner = await _nest(engine)
    one = Dedupe("one", "unfinished")
    members = _member(inner.id), _member(outer.id), _member(outer.id, dedupe=one)
    done, stays, shared = [await accept_one(engine, each) for each in members]
    assert isinstance((await engine.create([_member(inner.id, dedupe=one)]))[0], Coalesced)
    await settle(engine, done, Cancel())
    await accept(engine, *(a_job() for _ in range(_OTHERS)))
    await settle(engine, shared, Cancel())
    await accept(engine, *(a_job() for _ in range(_OTHERS)))
    await engine.seal_batch(inner.id)
    await accept(engine, *(a_job() for _ in range(_OTHERS)))
    last = await accept_one(engine, _member(outer.id))
    (part,) = (
        each for each in await engine.members(outer.id) if each.record.definition.type == "part"
    )
    return outer, [each.definition.id for each in (last, part.record, stays)]


async def _compact(engine: Engine) -> None:
    janitor = Janitor(engine, cast("JetStreamEngine", engine)._store)
    assert await janitor.compact() > 0


async def _compare(serving: Serving, clock: ManualClock, path: Path) -> None:
    """Compare the projection, which has followed, with one from the beginning."""
    fresh = SqliteEngine(path / "fresh.db", clock=clock)
    await fresh.open()
    async with serving(fresh) as late:
        assert await late.answers.catch_up()
    await fresh.close()
    assert differences(path / "projection.db", path / "fresh.db") == []


async def test_members_and_nesting_of_batches_are_known_although_their_batch_comes_later(
    engine: Engine, runtime: AdminRuntime, serving: Serving, clock: ManualClock, tmp_path: Path
) -> None:
    await _grouped(engine)
    assert await runtime.answers.catch_up()
    await _compact(engine)
    await _compare(serving, clock, tmp_path)


async def test_an_inner_batch_is_known_although_the_outer_one_comes_later(
    engine: Engine, runtime: AdminRuntime, serving: Serving, clock: ManualClock, tmp_path: Path
) -> None:
    outer, _ = await _nest(engine)
    await accept(engine, *(a_job() for _ in range(_OTHERS)))
    await accept_one(engine, _member(outer.id))
    assert await runtime.answers.catch_up()
    await _compact(engine)
    await _compare(serving, clock, tmp_path)


async def test_a_batch_waits_for_its_members_after_a_move_although_it_comes_after_them(
    engine: Engine, nats_url: str, subjects: Subjects, clock: ManualClock, tmp_path: Path
) -> None:
    outer, waiting = await _grouped(engine)
    members = [each.record.definition.id for each in await engine.members(outer.id)]
    await engine.seal_batch(outer.id)
    await _compact(engine)
    async with AsyncExitStack() as opened:
        source = ManualEngine(nats_url, prefix=subjects.prefix, clock=clock)
        target = SqliteEngine(tmp_path / "target.db", clock=clock)
        for each in (source, target):
            await each.open()
            opened.push_async_callback(each.close)
        url = f"{nats_url}?prefix={subjects.prefix}"
        exporter = await opened.enter_async_context(stream_exporter(url))
        here = Endpoint(cast("Engine", source), "nats://here", exporter)
        await move(here, Endpoint(target, "sqlite:///target.db"), By("ann"), dry_run=False)
        assert [each.record.definition.id for each in await target.members(outer.id)] == members
        for job_id in waiting:
            found = await target.batch(outer.id)
            assert found is not None
            assert found.fan_in is None
            await settle(target, await the(target, job_id), Cancel())
        found = await target.batch(outer.id)
        assert found is not None
        assert found.fan_in is not None


async def test_keys_links_and_archives_are_known_although_their_states_come_later(
    engine: Engine, runtime: AdminRuntime, serving: Serving, clock: ManualClock, tmp_path: Path
) -> None:
    await engine.set_archive(SERVICE, on=True)
    session, rule = await a_session(engine), KeyPolicy("k", active=1, queued=None)
    holder = await start(engine, session, a_keyed_job("k", rule, type="keyed"))
    first, second = await accept(engine, a_job(), a_job())
    after = tuple(Prerequisite(each.definition.id, "finished") for each in (first, second))
    await accept_one(engine, a_job(after=after))
    boom, expired = Failure("exception", "boom"), []
    for may_retry in (False, True):  # it fails, and it is dead
        job = await start(engine, session, a_job(type="short", policy=SHORT))
        expired.append(await settle(engine, job, Fail(fence_of(job), boom, retryable=may_retry)))
    clock.advance("2s")
    await engine.prune(10)
    await accept(engine, *(a_job() for _ in range(_OTHERS)))
    await accept(engine, *(a_keyed_job("k", rule, type="keyed") for _ in range(2)))
    await settle(engine, first, Cancel())
    await accept(engine, *(a_job() for _ in range(_OTHERS)))
    await settle(engine, holder, Complete(fence_of(holder), "null"))
    await settle(engine, second, Cancel())
    again: tuple[Command, Command] = (Retry(), Dismiss())
    for job, command in zip(expired, again, strict=True):
        await settle(engine, job, command)
    assert await engine.archivable(SERVICE, 10) == []  # which forgets both
    assert await runtime.answers.catch_up()
    await _compact(engine)
    await _compare(serving, clock, tmp_path)
