"""How many events a second the projector of jobs on NATS stores in a SQLite file.

`python -m bench.projector [JOBS]`: each job has three events. The stream is filled first, in atomic
batches of 300 messages; only the projection is timed, by the clock and by the processor.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.harness.servers.nats import nats_server
from trellis.admin.runtime import AdminRuntime
from trellis.core.commands import Claim, Complete
from trellis.core.job import Fence, SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.time import Time
from trellis.engines.sqlite import SqliteEngine
from trellis.testing.builders import a_job
from trellis.worker.child_process import tune_collector

TOGETHER = 300
JOBS = 20_000


async def fill(store: Store, jobs: int) -> None:
    """Store jobs that were created, started and completed."""
    for first in range(0, jobs, TOGETHER):
        new = [a_job() for _ in range(min(TOGETHER, jobs - first))]
        draft = Draft(store)
        for each in new:
            draft.create(each)
        await draft.write()
        current = [draft.written(each.id) for each in new]
        for is_end in (False, True):
            current = await _decide(store, current, is_end=is_end)


async def _decide(store: Store, current: list[Current], *, is_end: bool) -> list[Current]:
    draft = Draft(store)
    for each in current:
        fence = Fence(SessionId(1), each.definition.row)
        command = Complete(fence, '{"ok":true}', draft.now) if is_end else Claim(fence)
        decision = decide(each.record, command, draft.now)
        assert isinstance(decision, Transition)
        draft.know(each)
        draft.transition(each, decision)
    await draft.write()
    return [draft.written(each.definition.id) for each in current]


async def measure(url: str, file: Path, jobs: int) -> None:
    """Fill a stream, project it and print how long that took."""
    link, subjects = Link([url]), Subjects("speed")
    await link.open()
    await topology.migrate(link, subjects, 1, dry_run=False)
    store = Store(link, subjects, Time(None))
    await store.time.learn(link, subjects.state)
    await fill(store, jobs)
    tables = SqliteEngine(file)
    await tables.open()
    runtime = AdminRuntime(link, subjects, tables)
    await runtime.projection.prepare((subjects.jobs, subjects.state))
    tune_collector()
    began, used = time.perf_counter(), time.process_time()
    while await runtime.jobs.step():
        pass
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    print(
        f"{3 * jobs:,} events in {seconds:.2f} s: {3 * jobs / seconds:,.0f} per second; "
        f"{processor:.2f} s of processor; load {os.getloadavg()[0]:.1f}"
    )
    await tables.close()
    await link.close()


def main() -> None:
    """Measure on a server of our own."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "nats").mkdir()
        with nats_server(Path(folder) / "nats") as server:
            asyncio.run(measure(server.url, Path(folder) / "jobs.sqlite", jobs))


if __name__ == "__main__":
    main()
