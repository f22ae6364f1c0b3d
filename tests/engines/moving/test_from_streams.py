"""Moving out of NATS JetStream: the seal, and what is refused while workers are active."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.engines.jetstream.manual import ManualEngine
from tests.engines.postgres.household import inventory
from trellis import control
from trellis.admin.export import StreamExporter, stream_exporter
from trellis.core.commands import Cancel, Complete
from trellis.core.durations import SECOND
from trellis.core.policy import KeyPolicy
from trellis.core.states import State
from trellis.engines.audit import By
from trellis.engines.jetstream.seal import DeploymentSeal, lift
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.transfer import Busy
from trellis.engines.values import Accepted, QueueSettings
from trellis.errors import EngineError, MoveRefused
from trellis.operations.transfer import Endpoint, Moved, move
from trellis.testing.builders import a_demand, a_job, a_keyed_job, a_worker, fence_of

MIA = By("mia", "shrinking")
KEY = KeyPolicy("k", queued=None, when_full="wait")


async def carry(
    source: ManualEngine, exporter: StreamExporter, target: SqliteEngine, *, dry_run: bool = False
) -> Moved:
    here = Endpoint(source, "nats://here", exporter)
    return await move(here, Endpoint(target, "sqlite:///back.db"), MIA, dry_run=dry_run)


async def test_after_the_seal_nothing_can_be_done_at_the_source_but_looking(
    streams: ManualEngine, exporter: StreamExporter, file: SqliteEngine
) -> None:
    first, second = a_job(), a_job()
    await streams.create([first, second])
    before = await inventory(streams)
    await carry(streams, exporter, file)
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: streams.create([a_job()]),
        lambda: streams.create([a_keyed_job("k", KEY)]),
        lambda: streams.open_session(a_worker(), 30 * SECOND),
        lambda: control.apply(streams, first.id, Cancel("no")),
        lambda: streams.set_queue(QueueSettings("shop", "quiet", paused=True)),
        streams.migrate,
    ]
    for attempt in attempts:
        with pytest.raises(EngineError, match=r"were moved to sqlite:///back\.db"):
            await attempt()
    assert await inventory(streams) == before
    assert list(await inventory(file)) == [first.id, second.id]


async def test_a_dry_run_changes_nothing(
    streams: ManualEngine, exporter: StreamExporter, file: SqliteEngine
) -> None:
    await streams.create([a_job()])
    moved = await carry(streams, exporter, file, dry_run=True)
    assert (moved.states, moved.is_finished) == ({"pending": 1}, False)
    assert await streams.create([new := a_job()]) == [Accepted(new.id)]
    # What came since is moved, too.
    assert (await carry(streams, exporter, file)).copied == 2


async def test_a_source_with_a_live_worker_or_an_active_job_is_refused_and_stays_as_it_is(
    streams: ManualEngine, exporter: StreamExporter, file: SqliteEngine
) -> None:
    await streams.create([new := a_job()])
    session = (await streams.open_session(a_worker("busy-one"), 30 * SECOND)).id
    with pytest.raises(MoveRefused, match=r"1 live worker: busy-one .* workers drain"):
        await carry(streams, exporter, file)
    (taken,) = (await streams.claim(session, [a_demand()], 1)).jobs
    await streams.close_session(session)
    with pytest.raises(MoveRefused, match="1 active job whose worker is gone"):
        await carry(streams, exporter, file)
    # The look before is for people; the seal looks for itself, and is lifted.
    assert await exporter.seal("there", "there") == Busy(1, 0, 0)
    assert await exporter.seal_of() is None
    assert await inventory(file) == {}
    await control.apply(streams, new.id, Complete(fence_of(taken)))
    assert (await carry(streams, exporter, file)).left == 1


async def test_a_handler_that_was_stopped_from_outside_is_waited_for(
    streams: ManualEngine, exporter: StreamExporter, file: SqliteEngine
) -> None:
    await streams.create([a_keyed_job("k", KEY)])
    session = (await streams.open_session(a_worker(), 30 * SECOND)).id
    (taken,) = (await streams.claim(session, [a_demand()], 1)).jobs
    await control.apply(streams, taken.definition.id, Cancel("now", force=True))
    await streams.close_session(session)
    with pytest.raises(MoveRefused, match="may still be running"):
        await carry(streams, exporter, file)
    assert await streams.create([new := a_job()]) == [Accepted(new.id)]


async def test_a_seal_that_was_not_checked_is_lifted_by_the_next_run(
    streams: ManualEngine, streams_url: str, file: SqliteEngine
) -> None:
    await streams.create([new := a_job()])
    seal = DeploymentSeal(streams._store)
    await seal._shut(
        streams._subjects.jobs,
        {"id": "a", "instance": "b", "address": "c", "isFinished": False, "isChecked": False},
    )
    with pytest.raises(EngineError, match="run `trellis move` again"):
        await streams.create([a_job()])
    async with stream_exporter(streams_url) as exporter:
        assert await exporter.seal_of() is None
        assert await streams.create([other := a_job()]) == [Accepted(other.id)]
        assert (await carry(streams, exporter, file)).copied == 2
    assert list(await inventory(file)) == [new.id, other.id]


async def test_jobs_that_wait_for_a_slot_in_streams_get_one_in_the_file(
    streams: ManualEngine, exporter: StreamExporter, file: SqliteEngine
) -> None:
    first, second = (a_keyed_job("k", KEY) for _ in range(2))
    await streams.create([first, second, a_job(type="other")])
    await carry(streams, exporter, file)
    session = (await file.open_session(a_worker(), 30 * SECOND)).id
    (taken,) = (await file.claim(session, [a_demand()], 9)).jobs
    assert taken.definition.id == first.id
    await control.apply(file, first.id, Complete(fence_of(taken)))
    (taken,) = (await file.claim(session, [a_demand()], 9)).jobs
    assert (taken.definition.id, taken.head.state) == (second.id, State.ACTIVE)


async def test_the_seal_is_lifted_as_the_guide_says(
    streams: ManualEngine, exporter: StreamExporter, file: SqliteEngine
) -> None:
    await streams.create([a_job()])
    await carry(streams, exporter, file)
    await lift(streams._link, streams._subjects)
    assert await exporter.seal_of() is None
    assert await streams.create([new := a_job()]) == [Accepted(new.id)]
    assert (await streams.migrate(dry_run=True)).scripts == ()
