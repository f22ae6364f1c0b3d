"""Running the scenes of the demo: its folder, database and workers, and what it reports.

Every process that the demo starts is ended with it. The temporary files of the workers are in the
demo's folder, so that a killed process leaves none elsewhere.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final, NamedTuple, TypeVar

from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from trellis.cli.demo.jobs import app
from trellis.cli.demo.worker import Worker
from trellis.cli.output import is_interactive, progress_bar, stdout_console, visible
from trellis.client.ref import JobRef
from trellis.config import WorkerSettings
from trellis.core.events import Event, EventKind
from trellis.core.job import JobId, JobRecord, SessionId
from trellis.engines.port import Engine
from trellis.errors import ConfigurationError, TrellisError
from trellis.insight.doctor import diagnose
from trellis.worker.guardian.health_watch import is_stopped

T = TypeVar("T")

LEASE: Final = 3
GRACE: Final = 1
JOURNALS: Final = "the journal of a job records all that happened to it"
_SETTINGS: Final = f"""\
url = "{{url}}"
app = "trellis.cli.demo.jobs:app"
lease = "{LEASE}s"
grace = "{GRACE}s"
concurrency = 8
"""
_POLL_SECONDS: Final = 0.05
_TIMEOUT: Final = 30.0
_LOCK_TIMEOUT: Final = 0.05
_REPORT_SECONDS: Final = 2.0


class DemoFailed(TrellisError):
    """An expected event did not happen in time."""


class Observation(NamedTuple):
    """What a scene observed, and whether its promise held."""

    text: str
    held: bool


class Scene(NamedTuple):
    """One scene and its promise."""

    name: str
    title: str
    promise: str
    play: Callable[[Demo], Awaitable[Observation]]
    #: How many workers it needs.
    workers: int = 1
    #: Shows its own progress.
    has_bar: bool = False


class Execution(NamedTuple):
    """The worker, process and session that run a job."""

    worker: Worker
    pid: int
    session: SessionId

    def __str__(self) -> str:
        return f"{self.worker} (process {self.pid})"


# -- report --------------------------------------------------------------------------------------


class Screen:
    """Writes the report; on a terminal sentences are wrapped below their title."""

    def __init__(self) -> None:
        self.console = stdout_console()

    def write(self, text: str | Text, indent: int = 0) -> None:
        """Write a sentence."""
        line = Text(visible(text)) if isinstance(text, str) else text
        if is_interactive(self.console):
            self.console.print(Padding(line, (0, 0, 0, indent), expand=False), soft_wrap=False)
        else:
            self.console.print(Text(" " * indent).append_text(line), soft_wrap=True)

    def title(self, text: str) -> None:
        """Write the title of a scene."""
        self.console.print()
        self.write(Text(text, style="bold"))

    def step(self, text: str) -> None:
        """Write what happens in a scene."""
        self.write(text, indent=2)

    def verdict(self, seen: Observation) -> None:
        """Write how a scene ended."""
        self.write(Text.assemble(_verdict(seen), f": {visible(seen.text)}"), indent=2)

    def summary(self, results: Sequence[tuple[str, Observation]]) -> None:
        """Write every promise with its observation."""
        if self.console.file.isatty():
            table = Table("", "promise", "observed", box=SIMPLE_HEAD, pad_edge=False)
            for promise, seen in results:
                table.add_row(_verdict(seen), promise, Text(visible(seen.text)))
            self.console.print(table, soft_wrap=False)
        else:
            self.console.print()
            for promise, seen in results:
                self.write(f"{_verdict(seen).plain:<8}{promise}")
                self.write(seen.text, indent=8)
            self.console.print()
        self.write(f"{sum(seen.held for _, seen in results)} of {len(results)} promises held.")

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Show the seconds: beside a spinner on a terminal, as lines elsewhere."""
        if is_interactive(self.console):
            columns = (TextColumn(" "), SpinnerColumn(), TextColumn("{task.elapsed:.0f} s"))
            with Progress(*columns, console=self.console, transient=True) as spinner:
                spinner.add_task("", total=None)
                yield
            return
        ticking = asyncio.create_task(self._write_seconds())
        try:
            yield
        finally:
            ticking.cancel()
            await asyncio.wait([ticking])

    async def _write_seconds(self) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            self.console.print(f"  ... {time.monotonic() - began:.0f} s")


def _verdict(seen: Observation) -> Text:
    return Text("held", style="green") if seen.held else Text("BROKEN", style="bold red")


# -- workers and jobs ----------------------------------------------------------------------------


class Demo:
    """The database and the workers of a running demo."""

    def __init__(self, folder: Path, engine: Engine, screen: Screen) -> None:
        self.folder = folder
        self.engine = engine
        self.screen = screen
        self.workers: list[Worker] = []

    @property
    def running(self) -> list[Worker]:
        """The workers that have not ended."""
        return [worker for worker in self.workers if not worker.has_ended]

    def start_worker(self) -> Worker:
        """Start another worker."""
        name = ascii_uppercase[len(self.workers)]
        self.workers.append(Worker(name, self.folder, self.folder / "tmp"))
        return self.workers[-1]

    async def ensure_workers(self, number: int) -> None:
        """Start workers until this many are running and have opened their sessions."""
        while len(self.running) < number:
            self.start_worker()
        for worker in self.running:
            await self.process_of(worker)

    async def process_of(self, worker: Worker) -> int:
        """Wait until a worker has opened its session; return its worker process."""

        async def pid() -> int | None:
            if worker.has_ended:
                raise DemoFailed(
                    f"The demo cannot continue: {worker} has ended unexpectedly. Its log ends "
                    f"with:\n{worker.log_end}"
                )
            sessions = [each for each in await self.engine.sessions() if each.ended_at is None]
            return next((one.info.pid for one in sessions if one.info.name == worker.name), None)

        return await self.until(pid, f"{worker} to start")

    async def execution(self, ref: JobRef[object]) -> Execution:
        """Wait until a handler runs this job; return where."""

        async def found() -> Execution | None:
            fence = (await self.record(ref)).head.fence
            if fence is None or await self.engine.activity(JobId(ref.id)) is None:
                return None
            return await self._execution_of(fence.session)

        return await self.until(found, "a worker to run the job")

    async def completion(self, ref: JobRef[object]) -> Execution:
        """Return the execution that completed a job."""
        journal = await self.journal(ref)
        (fence,) = (each.fence for each in journal if each.kind is EventKind.COMPLETED)
        if fence is None:
            raise DemoFailed(f"The journal does not show which attempt completed job {ref.id}.")
        return await self._execution_of(fence.session)

    async def _execution_of(self, session: SessionId) -> Execution:
        info = next(one.info for one in await self.engine.sessions() if one.id == session)
        worker = next(each for each in self.workers if each.name == info.name)
        return Execution(worker, info.pid, session)

    @asynccontextmanager
    async def frozen(self, execution: Execution) -> AsyncIterator[None]:
        """Freeze a worker while it holds no lock on the database, which would block all others."""
        worker = execution.worker

        async def stopped() -> bool:
            return is_stopped(worker.guardian) and is_stopped(execution.pid)

        try:
            while True:
                worker.freeze()
                await self.until(stopped, f"{worker} to freeze")
                if await asyncio.to_thread(self._can_lock):
                    break
                worker.thaw()
            yield
        finally:
            worker.thaw()

    def _can_lock(self) -> bool:
        try:
            database = self.folder / "demo.db"
            with closing(sqlite3.connect(database, timeout=_LOCK_TIMEOUT)) as connection:
                connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return False
        return True

    async def record(self, ref: JobRef[object]) -> JobRecord:
        """Return a job as it is now."""
        (record,) = (await self.engine.load([JobId(ref.id)])).records
        if record is None:
            raise DemoFailed(f"Job {ref.id} is lost.")
        return record

    async def journal(self, ref: JobRef[object]) -> list[Event]:
        """Return the journal of a job."""
        return await self.engine.journal(JobId(ref.id))

    async def until(self, probe: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Wait until the probe returns something true; return it."""
        end = time.monotonic() + _TIMEOUT
        while not (found := await probe()):
            if time.monotonic() > end:
                raise DemoFailed(f"Waited {_TIMEOUT:g} s for {what}.")
            await asyncio.sleep(_POLL_SECONDS)
        return found


@asynccontextmanager
async def _open_demo(folder: Path, screen: Screen) -> AsyncIterator[Demo]:
    """Set up the folder and the database; at the end, kill every worker."""
    url = f"sqlite:///{folder / 'demo.db'}"
    (folder / "trellis.toml").write_text(_SETTINGS.format(url=url), encoding="utf-8")
    scratch = folder / "tmp"
    scratch.mkdir()
    tempdir_before = tempfile.tempdir
    tempfile.tempdir = str(scratch)
    app.connection.point_at(url)
    demo = Demo(folder, await app.connection.engine(), screen)
    try:
        yield demo
    finally:
        for worker in demo.workers:
            worker.kill()
        await app.connection.close()
        tempfile.tempdir = tempdir_before
        shutil.rmtree(scratch, ignore_errors=True)


# -- scenes --------------------------------------------------------------------------------------


def run_demo(folder: Path, names: Sequence[str]) -> bool:
    """Run the scenes of these names, or all; return whether every promise held.

    Raises `KeyboardInterrupt` after a signal, once all processes have ended.
    """
    from trellis.cli.demo.scenes import SCENES

    known = [scene.name for scene in SCENES]
    for name in names:
        if name not in known:
            raise ConfigurationError(f"The demo has no scene {name!r}. It has {', '.join(known)}.")
    scenes = [scene for scene in SCENES if not names or scene.name in names]
    all_held = asyncio.run(_until_interrupted(_run_scenes(folder, scenes)))
    if all_held is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the removal of files is left to do
        raise KeyboardInterrupt
    return all_held


async def _until_interrupted(work: Coroutine[Any, Any, bool]) -> bool | None:
    """Return None if a signal comes first; further signals do not disturb the clean-up."""
    running = asyncio.create_task(work)

    def interrupt() -> None:
        if not running.cancelling():
            running.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            asyncio.get_running_loop().add_signal_handler(number, interrupt)
    try:
        return await running
    except asyncio.CancelledError:
        return None


async def _run_scenes(folder: Path, scenes: Sequence[Scene]) -> bool:
    needed = max(scene.workers for scene in scenes)
    screen = Screen()
    results = []
    async with _open_demo(folder, screen) as demo:
        await _start(demo, needed)
        for number, scene in enumerate(scenes, 1):
            screen.title(f"{number}. {scene.title}")
            results.append((scene.promise, await _play(scene, demo, needed)))
            screen.verdict(results[-1][1])
        screen.title(f"{len(scenes) + 1}. The journals of all jobs")
        results.append((JOURNALS, await _check_journals(demo)))
        screen.verdict(results[-1][1])
    screen.summary(results)
    return all(seen.held for _, seen in results)


async def _start(demo: Demo, workers: int) -> None:
    demo.screen.write(f"Workers start on a new database, {demo.folder / 'demo.db'}:")
    async with demo.screen.waiting():
        await demo.ensure_workers(workers)
    for worker in demo.workers:
        process = await demo.process_of(worker)
        demo.screen.step(
            f"{worker} runs jobs in process {process}; guardian {worker.guardian} watches it"
        )


async def _play(scene: Scene, demo: Demo, workers: int) -> Observation:
    try:
        await demo.ensure_workers(workers)
        if scene.has_bar:
            return await scene.play(demo)
        async with demo.screen.waiting():
            return await scene.play(demo)
    except TrellisError as error:
        return Observation(str(error), held=False)


async def _check_journals(demo: Demo) -> Observation:
    demo.screen.step("the workers are asked to stop")
    for worker in demo.workers:
        worker.terminate()

    async def all_ended() -> bool:
        return not demo.running

    await demo.until(all_ended, "the workers to stop")
    demo.screen.step(
        "every job is computed again from its journal and compared with what is stored"
    )
    with progress_bar("  journals", demo.screen.console, transient=False) as progress:
        diagnosis = await diagnose(demo.engine, WorkerSettings(), progress)
    wrong = len(diagnosis.mismatches)
    match = "all match their jobs" if not wrong else f"{wrong} do NOT match their jobs"
    return Observation(f"{diagnosis.checked} journals checked, {match}", diagnosis.is_sound)
