"""Commands that read write on NATS what they write on SQLite, apart from ids and times."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from tests.cli.conftest import Run
from tests.cli.shop import fill
from tests.cli.test_remote import READS
from tests.harness.servers.nats_fixtures import *  # noqa: F403 - fixtures, listed there
from trellis.admin.opening import serve
from trellis.cli.app import run
from trellis.engines import make_engine

Shop: TypeAlias = tuple[str, dict[str, str]]
TABLES: Final = ("jobs list", "jobs show ID", "jobs why ID", "keys list", "workers list")
#: What differs between two stores with the same jobs: ids, when something was, how long ago.
_OWN: Final = re.compile(
    r"\b[0-9A-HJKMNP-TV-Z]{26}\b|\b[0-9a-f]{8,32}\b"
    r"|(\d{4}-)?\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?|(under )?\d+ ?m?s\b"
)


@pytest.fixture(scope="module")
def on_nats(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A deployment with the jobs of the shop and an admin runtime, and the ids of its jobs."""
    url = f"{nats_url}?prefix=reads"
    assert run(("migrate", "--url", url)) == 0
    ids = asyncio.run(fill(make_engine(url)))
    file = str(tmp_path_factory.mktemp("projection") / "jobs.sqlite")
    ready, loops = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def keep() -> None:
        loops.append((asyncio.get_running_loop(), asyncio.Event()))
        await serve(url, file, loops[0][1], ready.set)

    thread = threading.Thread(target=lambda: asyncio.run(keep()))
    thread.start()
    assert ready.wait(20)
    yield url, ids
    loop, ended = loops[0]
    loop.call_soon_threadsafe(ended.set)
    thread.join()


@pytest.mark.parametrize("words", [*READS, *TABLES])
def test_a_command_that_reads_writes_the_same_on_nats(
    command: Run, shop: tuple[Path, dict[str, str]], on_nats: Shop, words: str
) -> None:
    stores = (f"sqlite:///{shop[0] / 'jobs.db'}", shop[1]), on_nats
    there, here = (
        command(*words.replace("ID", ids["completed"]).split(), "--url", url) for url, ids in stores
    )
    assert (here.code, _OWN.sub("...", here.out)) == (0, _OWN.sub("...", there.out)), here.err
