"""Kill a move at one point after another, and let it go on each time.

Run as a program: `python moving_driver.py URL FILE`. Each run of the command is a forked child,
which dies (kill -9) at the named failpoint; half-way the target is worked on, and what was finished
there is removed. In the end everything must be there once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

# Loaded before the forks, so that a child starts at once.
from tests.engines.postgres.household import furnish, inventory
from trellis import control, failpoints, schedules
from trellis.cli import move as _command
from trellis.cli.app import run
from trellis.core.batches import NewBatch
from trellis.core.commands import Complete
from trellis.core.durations import micros
from trellis.core.fold import fold
from trellis.core.job import Relations
from trellis.core.schedules import Step
from trellis.core.states import State
from trellis.engines.postgres import PostgresEngine
from trellis.engines.sqlite import SqliteEngine
from trellis.engines.values import JobFilter
from trellis.operations import transfer
from trellis.testing.builders import a_declaration, a_demand, a_job, a_worker, fence_of

LOADED = (_command, transfer)
#: Small batches, so that few jobs make many of them.
BATCH_SIZE = 20
MANY = 44
SOME = 5
MINUTE = micros("1m")
BATCH = NewBatch("01JC0000000000000000000000", "shop")
#: Before and after the seal; behind a page of the ledger; in the first batch and behind it; in the
#: third; before the end.
DEATHS = (
    "sqlite.seal",
    "move.sealed",
    "move.rows:2",
    "sql.import",
    "move.batch",
    "sql.import:2",
    "move.before-finish",
)


def apart(action: Callable[[], int]) -> int:
    """Do something in a process of its own; return its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        os._exit(action())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def move(url: str, path: Path, death: str = "") -> int:
    """Run the command, to die at a failpoint."""
    failpoints._armed, failpoints._remaining = failpoints._parse(death)
    return run(["move", "--from", f"sqlite:///{path}", "--to", url, "--json"])


def die(url: str, path: Path, death: str) -> None:
    """Run the command in a process that does not live to its end."""
    assert apart(lambda: move(url, path, death)) == -signal.SIGKILL, death


async def prepare(path: Path) -> int:
    """Fill the file, with more than one batch."""
    await furnish(path)
    engine = SqliteEngine(path)
    await engine.open()
    await engine.open_batch(BATCH)
    relations = Relations(batch=BATCH.id)
    for half in (range(MANY // 2), range(MANY // 2, MANY)):
        await engine.create([a_job(type="many", payload=str(number)) for number in half])
        await engine.create([a_job(type="grouped", relations=relations) for _ in range(SOME)])
    await engine.seal_batch(BATCH.id)
    await schedules.declare_schedules(engine, "shop", [a_declaration(paused=True)], lambda _: True)
    (stored,) = await engine.schedules()
    due = stored._replace(next_slot=(stored.next_slot or 0) - MANY * MINUTE)
    await engine.advance_schedule(Step(due))
    await schedules.fire_due(engine)
    await engine.close()
    return 0


async def work(url: str) -> int:
    """Finish some jobs at the target and remove them."""
    engine = PostgresEngine(url)
    await engine.open()
    session = (await engine.open_session(a_worker(), 30_000_000)).id
    taken = (await engine.claim(session, [a_demand("many")], SOME)).jobs
    asked = [(each, Complete(fence_of(each))) for each in taken]
    await control.apply_all(engine, asked, await engine.now())
    removed = await engine.remove([each.definition.id for each in taken])
    await engine.close_session(session)
    await engine.close()
    return 0 if removed == ["removed"] * SOME else 1


async def check(url: str, path: Path) -> int:
    """Compare both ends."""
    here, there = SqliteEngine(path, create=False), PostgresEngine(url)
    await here.open()
    await there.open()
    left, arrived = await inventory(here), await inventory(there)
    gone = (await there.load(list(left))).removed
    expected = [
        job_id
        for job_id, thing in left.items()
        if job_id not in gone
        and thing.record.head.state not in ("completed", "failed", "cancelled")
    ]
    assert len(gone) == SOME
    assert list(arrived) == expected
    for job_id, thing in arrived.items():
        assert thing.record == left[job_id].record
        assert fold(thing.journal) == thing.record.head
    waiting = MANY - SOME + 8 + 2 * SOME
    assert (await there.count(JobFilter(), "state")).groups["pending"] == waiting
    (batch,) = await there.batch_statuses([BATCH.id])
    assert batch is not None
    assert (batch.batch.state, batch.counts) == ("sealed", {State.PENDING: 2 * SOME})
    ledger = await here.slots("shop", "nightly", limit=99)
    assert len(ledger) == MANY
    assert await there.slots("shop", "nightly", limit=99) == ledger
    await here.close()
    await there.close()
    return 0


def main(url: str, path: Path) -> int:
    """Tell the whole story."""
    assert transfer.move.__kwdefaults__ is not None
    transfer.move.__kwdefaults__["batch_size"] = BATCH_SIZE
    assert apart(lambda: asyncio.run(prepare(path))) == 0
    for death in DEATHS:
        die(url, path, death)
        if death == "move.batch":
            assert apart(lambda: asyncio.run(work(url))) == 0
    assert apart(lambda: move(url, path)) == 0
    assert apart(lambda: move(url, path)) == 0  # once more: nothing is left to do
    assert apart(lambda: asyncio.run(check(url, path))) == 0
    sys.stdout.write(f"died {len(DEATHS)} times\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
