"""The file is deleted, moved away or replaced while a program has it open."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.worker.faulty import eventually
from trellis import ActiveJob, Service
from trellis.core.commands import Cancel
from trellis.core.durations import SECOND
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import Accepted, JobFilter
from trellis.errors import DatabaseMissing
from trellis.testing.builders import a_demand, a_job, a_worker
from trellis.testing.conformance.helpers import decided


def delete(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def replace(path: Path) -> None:
    """Put another database there, as a restored backup."""
    other = path.with_name("other.db")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(other)) as target:
        source.backup(target)
    delete(path)
    other.rename(path)


def move_away(path: Path) -> None:
    path.rename(path.with_name("away.db"))


def move_back(path: Path) -> None:
    path.with_name("away.db").rename(path)


def list_files(path: Path) -> list[Path]:
    return [each for each in path.parent.iterdir() if each == path]


async def has_renewed(service: Service) -> bool:
    engine = await service.connection.engine()
    return all(each.renewed_at > each.opened_at for each in await engine.sessions())


def fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize(("lose", "words"), [(delete, "was deleted"), (replace, "was replaced")])
async def test_no_call_is_answered_from_a_file_that_is_gone(
    engine: SqliteEngine, path: Path, lose: Callable[[Path], None], words: str
) -> None:
    new = a_job()
    assert await engine.create([new]) == [Accepted(new.id)]
    session = (await engine.open_session(a_worker(), 30 * SECOND)).id
    (record,) = (await engine.load([new.id])).records
    assert record is not None
    cancel = await decided(engine, record, Cancel())
    lose(path)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: engine.create([a_job()]),
        lambda: engine.claim(session, [a_demand()], 1),
        lambda: engine.claim(session, [a_demand("none")], 1),
        lambda: engine.commit([cancel]),
        lambda: engine.renew(session, ()),
        lambda: engine.load([new.id]),
        lambda: engine.count(JobFilter()),
        lambda: engine.due("sessions", 1),
        lambda: engine.promote(1),
        engine.health,
    ]
    for call in calls:
        with pytest.raises(DatabaseMissing, match=words):
            await call()
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as caller:
        caller.execute("begin immediate")
        with pytest.raises(DatabaseMissing, match=words):
            engine.create_within(caller, [a_job()])


async def test_a_file_that_is_moved_back_is_used_again(engine: SqliteEngine, path: Path) -> None:
    await engine.create([first := a_job()])
    move_away(path)
    with pytest.raises(DatabaseMissing, match="Move the file back"):
        await engine.create([a_job()])
    move_back(path)
    await engine.create([second := a_job()])
    loaded = await engine.load([first.id, second.id])
    assert None not in loaded.records


async def test_an_engine_that_is_opened_again_uses_the_new_file(
    engine: SqliteEngine, path: Path
) -> None:
    await engine.create([kept := a_job()])
    replace(path)
    with pytest.raises(DatabaseMissing, match="start them again"):
        await engine.create([a_job()])
    await engine.close()
    await engine.open()
    await engine.create([new := a_job()])
    assert None not in (await engine.load([kept.id, new.id])).records


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_fork_does_not_lead_to_another_file(engine: SqliteEngine, path: Path) -> None:
    await engine.create([a_job()])
    replace(path)
    fork()
    with pytest.raises(DatabaseMissing, match="was replaced"):
        await engine.create([a_job()])


async def test_a_worker_creates_no_empty_file_in_place_of_one_that_is_gone(path: Path) -> None:
    service = Service("shop", f"sqlite:///{path}")
    async with service.connection.borrowed() as borrowed:
        for_its_lease = borrowed.make()
        move_away(path)
        with pytest.raises(DatabaseMissing):
            await for_its_lease.open()
        assert not list_files(path)
        move_back(path)


async def test_a_worker_says_so_once_and_goes_on_when_the_file_is_back(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    service = Service("shop", f"sqlite:///{path}")
    begun, go_on = asyncio.Event(), asyncio.Event()

    @service.job
    async def work(job: ActiveJob[None]) -> str:
        begun.set()
        await go_on.wait()
        return "done"

    async with service, service.worker(poll="10ms"):
        ref = await work.create()
        await asyncio.wait_for(begun.wait(), 10)
        await eventually(lambda: has_renewed(service))  # its lease has its own connection
        move_away(path)
        await eventually(lambda: "was deleted or moved" in caplog.text)
        move_back(path)
        go_on.set()
        assert await ref.wait("20s") == "done"
    # A call that failed meanwhile may be reported when others are answered already.
    outage, _, _ = caplog.text.partition("The engine answers again")
    assert outage.count("was deleted or moved") == 1
