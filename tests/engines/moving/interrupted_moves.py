"""Kill a move to streams and one back at one point after another, and let each go on.

Run as a program: `python interrupted_moves.py NATS FILE BACK`. Each run of the command is a forked
child, which dies (kill -9) at the named failpoint. In the end everything must be there once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# Loaded before the forks, so that a child starts at once.
from tests.engines.jetstream.manual import ManualEngine
from tests.engines.moving.estate import Estate, found, survey
from trellis import failpoints
from trellis.admin import export
from trellis.cli import move as _command
from trellis.cli.app import run
from trellis.core.fold import fold
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.operations import transfer

LOADED = (_command, transfer, export)
#: Small batches, so that few jobs make many of them.
BATCH_SIZE = 6
#: Before and after the seal; behind a page of rows; in the first batch and behind it; in the third;
#: before the end.
TO_STREAMS = (
    "sqlite.seal",
    "move.sealed",
    "move.rows:2",
    "jetstream.import",
    "move.batch",
    "jetstream.import:2",
    "move.before-finish",
)
BACK = (
    "jetstream.seal",
    "move.sealed",
    "move.rows:2",
    "sql.import",
    "move.batch",
    "move.before-finish",
)


def apart(action: Callable[[], int]) -> int:
    """Do something in a process of its own; return its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        os._exit(action())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def move(source: str, target: str, death: str = "") -> int:
    """Run the command, to die at a failpoint."""
    failpoints._armed, failpoints._remaining = failpoints._parse(death)
    return run(["move", "--from", source, "--to", target, "--history", "--json"])


def tell(source: str, target: str, deaths: tuple[str, ...]) -> None:
    """Move, with a death at each of these points, and once more when all is done."""
    for death in deaths:
        assert apart(lambda death=death: move(source, target, death)) == -signal.SIGKILL, death  # type: ignore[misc]
    assert apart(lambda: move(source, target)) == 0
    assert apart(lambda: move(source, target)) == 0  # nothing is left to do


async def prepare(path: Path, back: Path) -> int:
    """Fill one file and make the other."""
    await found(path)
    engine = SqliteEngine(back)
    await engine.open()
    await engine.close()
    return 0


async def look(engine: Engine) -> Estate:
    """Return everything about a store."""
    await engine.open()
    try:
        return await survey(engine)
    finally:
        await engine.close()


async def check(url: str, path: Path, back: Path) -> int:
    """Compare the three stores."""
    server, _, prefix = url.partition("?prefix=")
    before = await look(SqliteEngine(path, create=False))
    streams = await look(ManualEngine(server, prefix=prefix))
    after = await look(SqliteEngine(back, create=False))
    for estate in (streams, after):
        assert list(estate.things) == list(before.things)
        for job_id, thing in estate.things.items():
            assert thing == before.things[job_id]
            assert fold(thing.journal) == thing.record.head
        assert estate.settings == before.settings
        assert estate.batches == before.batches
        assert estate.links == before.links
    return 0


def main(url: str, path: Path, back: Path) -> int:
    """Tell the whole story."""
    tempfile.tempdir = str(back.parent)  # a killed export leaves its temporary file
    assert transfer.move.__kwdefaults__ is not None
    transfer.move.__kwdefaults__["batch_size"] = BATCH_SIZE
    assert apart(lambda: asyncio.run(prepare(path, back))) == 0
    tell(f"sqlite:///{path}", url, TO_STREAMS)
    tell(url, f"sqlite:///{back}", BACK)
    assert apart(lambda: asyncio.run(check(url, path, back))) == 0
    sys.stdout.write(f"died {len(TO_STREAMS) + len(BACK)} times\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
