"""Where the demo plays: a folder of its own with the database and the settings, and the workers.

Whatever happens, leaving the stage ends every process it started. Their temporary files (engines
keep doorbells there) are in the stage's folder too, so that a killed process leaves none elsewhere.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from string import ascii_uppercase
from types import TracebackType
from typing import Final, NamedTuple, Self

from trellis.cli.demo.jobs import app
from trellis.cli.demo.telling import Teller
from trellis.cli.demo.worker import Worker
from trellis.client.ref import JobRef
from trellis.core.events import Event, EventKind
from trellis.core.job import JobId, JobRecord, SessionId
from trellis.engines.port import Engine
from trellis.errors import TrellisError
from trellis.worker.guardian.proc_info import is_stopped

LEASE: Final = 3
GRACE: Final = 1
SLOTS: Final = 8
_SETTINGS: Final = """\
url = "{url}"
app = "trellis.cli.demo.jobs:app"
lease = "{lease}s"
grace = "{grace}s"
concurrency = {slots}
"""
_LOOK_EVERY: Final = 0.05
_PATIENCE: Final = 30.0
_LOCK_PATIENCE: Final = 0.05


class StageFright(TrellisError):
    """Something that should have happened by now has not."""


class Runner(NamedTuple):
    """Who runs a job."""

    worker: Worker
    pid: int
    session: SessionId

    def __str__(self) -> str:
        return f"{self.worker} (process {self.pid})"


class Stage:
    """The place, the engine and the workers."""

    def __init__(self, folder: Path, tell: Teller) -> None:
        self.folder = folder
        self.tell = tell
        self.database = folder / "demo.db"
        self.engine: Engine
        self.workers: list[Worker] = []
        self._names = iter(ascii_uppercase)
        self._scratch = folder / "tmp"
        self._scratch_before = tempfile.tempdir

    async def __aenter__(self) -> Self:
        url = f"sqlite:///{self.database}"
        settings = _SETTINGS.format(url=url, lease=LEASE, grace=GRACE, slots=SLOTS)
        (self.folder / "trellis.toml").write_text(settings, encoding="utf-8")
        self._scratch.mkdir()
        tempfile.tempdir = str(self._scratch)
        app.connection.point_at(url)
        self.engine = await app.connection.engine()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self.workers:
            worker.kill()
        await app.connection.close()
        tempfile.tempdir = self._scratch_before
        shutil.rmtree(self._scratch, ignore_errors=True)

    # -- workers -------------------------------------------------------------------------------

    @property
    def present(self) -> list[Worker]:
        """The workers that are still there."""
        return [worker for worker in self.workers if not worker.is_gone]

    def start_worker(self) -> Worker:
        """Start another worker."""
        worker = Worker(next(self._names), self.folder, self._scratch)
        self.workers.append(worker)
        return worker

    async def staff(self, number: int) -> None:
        """See to it that so many workers work."""
        while len(self.present) < number:
            self.start_worker()
        for worker in self.present:
            await self.process_of(worker)

    async def dismiss(self) -> None:
        """Stop the workers in order."""
        for worker in self.workers:
            worker.tell_to_stop()

        async def all_gone() -> bool:
            return not self.present

        await self.until(all_gone, "the workers to stop")

    async def process_of(self, worker: Worker) -> int:
        """Wait until a worker works; return its worker process."""
        found = 0

        async def works() -> bool:
            nonlocal found
            if worker.is_gone:
                raise StageFright(
                    f"The demo cannot go on: {worker} has ended by itself. Its log ends with:\n"
                    f"{worker.last_words}"
                )
            sessions = await self.engine.sessions()
            names = {one.info.name: one.info.pid for one in sessions if one.ended_at is None}
            found = names.get(worker.name, 0)
            return found != 0

        await self.until(works, f"{worker} to work")
        return found

    async def runner_of(self, ref: JobRef[object]) -> Runner:
        """Wait until a handler runs this job; return who it is."""
        found: list[Runner] = []

        async def runs() -> bool:
            fence = (await self.record(ref)).head.fence
            if fence is None or await self.engine.activity(JobId(ref.id)) is None:
                return False
            found.append(await self._runner(fence.session))
            return True

        await self.until(runs, "a worker to take the job")
        return found[-1]

    async def settler_of(self, ref: JobRef[object]) -> Runner:
        """Return whose result completed a job."""
        journal = await self.journal(ref)
        (fence,) = [each.fence for each in journal if each.kind is EventKind.COMPLETED]
        if fence is None:
            raise StageFright(f"Nobody knows who completed job {ref.id}.")
        return await self._runner(fence.session)

    async def _runner(self, session: SessionId) -> Runner:
        info = next(one.info for one in await self.engine.sessions() if one.id == session)
        worker = next(each for each in self.workers if each.name == info.name)
        return Runner(worker, info.pid, session)

    @asynccontextmanager
    async def frozen(self, runner: Runner) -> AsyncIterator[None]:
        """Freeze a worker; not in the middle of a write, which would freeze everybody else too."""
        worker = runner.worker

        async def stands_still() -> bool:
            return is_stopped(worker.guardian) and is_stopped(runner.pid)

        try:
            while True:
                worker.freeze()
                await self.until(stands_still, f"{worker} to stand still")
                if await asyncio.to_thread(self._may_write):
                    break
                worker.thaw()
            yield
        finally:
            worker.thaw()

    def _may_write(self) -> bool:
        """Tell whether nobody is in the middle of a write."""
        try:
            with closing(sqlite3.connect(self.database, timeout=_LOCK_PATIENCE)) as connection:
                connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return False
        return True

    # -- jobs ----------------------------------------------------------------------------------

    async def record(self, ref: JobRef[object]) -> JobRecord:
        """Return a job as it is now."""
        (record,) = (await self.engine.load([JobId(ref.id)])).records
        if record is None:
            raise StageFright(f"Job {ref.id} is lost.")
        return record

    async def journal(self, ref: JobRef[object]) -> list[Event]:
        """Return all that has happened to a job."""
        return await self.engine.journal(JobId(ref.id))

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait for something to become true."""
        end = time.monotonic() + _PATIENCE
        while not await holds():
            if time.monotonic() > end:
                raise StageFright(f"Waited {_PATIENCE:g} s in vain for {what}.")
            await asyncio.sleep(_LOOK_EVERY)
