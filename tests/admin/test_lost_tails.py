"""A stream that lost its end, and has grown past it again, is projected from the beginning."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from tests.harness.projections import differences
from tests.harness.servers.nats import NatsServer
from trellis.admin.runtime import AdminRuntime
from trellis.engines.jetstream import JetStreamEngine
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.testing.builders import a_job
from trellis.testing.conformance.helpers import accept

_SAVED, _LOST = 5, 5


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[tuple[Engine, Link]]:
    engine, link = JetStreamEngine(url), Link([url])
    await engine.open()
    await link.open()
    yield cast("Engine", engine), link
    await link.close()
    await engine.close()


async def _project(url: str, path: Path) -> None:
    """Run an admin runtime until it has what the streams have."""
    tables = SqliteEngine(path)
    await tables.open()
    async with AdminRuntime(Link([url]), Subjects(), tables) as runtime:
        assert await runtime.answers.catch_up()
    await tables.close()


def _restore(server: NatsServer) -> None:
    server.stop()
    data, saved = server.folder / "data", server.folder / "saved"
    shutil.rmtree(data)
    saved.rename(data)
    server.start()
    server.wait()


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("more", [1, 10])
async def test_messages_in_place_of_lost_ones_are_projected(
    own_nats: NatsServer, tmp_path: Path, is_deleted: bool, more: int
) -> None:
    url, path, fresh = own_nats.url, tmp_path / "jobs.db", tmp_path / "fresh.db"
    await JetStreamEngine(url).migrate()
    async with _opened(url) as (engine, _):
        await accept(engine, *(a_job() for _ in range(_SAVED)))
    own_nats.stop()
    shutil.copytree(own_nats.folder / "data", own_nats.folder / "saved")
    own_nats.start()
    own_nats.wait()
    async with _opened(url) as (engine, _):
        await accept(engine, *(a_job() for _ in range(_LOST)))
    await _project(url, path)
    _restore(own_nats)
    async with _opened(url) as (engine, link):
        await accept(engine, *(a_job() for _ in range(_LOST + more)))
        if is_deleted:  # the message to which the projection has come, as upkeep deletes it
            await link.api("STREAM.MSG.DELETE.JOBS", {"seq": _SAVED + _LOST})
    for each in (path, fresh):
        await _project(url, each)
    assert differences(path, fresh) == []
