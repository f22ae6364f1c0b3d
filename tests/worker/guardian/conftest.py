"""Real `trellis worker` processes with a real database file, and how tests observe them.

A handler reports that it has begun by a line in `begun.txt` (job, attempt, process); a test waits
for that line. What happened to the job is read from its journal, whose times are the engine's.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from tests.cli.conftest import start
from trellis import Service, control
from trellis.core.commands import Cancel
from trellis.core.durations import Micros
from trellis.core.events import Event
from trellis.core.job import JobId, JobRecord, SessionId
from trellis.core.policy import encode_policy
from trellis.engines.values import SessionRecord, WorkerInfo
from trellis.insight.worker_views import worker_view

PROGRAM = Path(__file__).with_name("program.py")
PATIENCE = 40.0
#: How long handlers may take to finish, in seconds; some tests wait until it is over.
GRACE = 0.3
T = TypeVar("T")


class Begun(NamedTuple):
    """A handler that was called."""

    job_id: str
    attempt: int
    pid: int


class Worker:
    """A guardian that runs, and its log."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for_log(self, text: str) -> str:
        """Wait until the log contains this text; return the line."""

        def look() -> str | None:
            is_over = self.process.poll() is not None
            found = next((line for line in self.log.splitlines() if text in line), None)
            if is_over and found is None:
                pytest.fail(f"The worker ended without logging {text!r}:\n{self.log}")
            return found

        return wait_until(look)

    def signal(self, number: int = signal.SIGTERM) -> float:
        """Send a signal; return the time, by the clock that the journal uses."""
        sent = time.time()
        self.process.send_signal(number)
        return sent

    def wait_for_exit(self) -> int:
        """Wait for the end; return the exit code."""
        return self.process.wait(PATIENCE)


class Shop:
    """A folder with a program and a file of jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._database = folder / "trellis.db"
        self.url = f"sqlite:///{self._database}"
        self._workers: list[Worker] = []
        (folder / "program.py").write_text(PROGRAM.read_text())

    def create(self, name: str, payload: object = None, **options: Any) -> str:  # noqa: ANN401 - any policy
        """Create a job; workers that start from now on declare its type with these options."""

        async def ask(service: Service) -> str:
            of = type(None) if payload is None else type(payload)
            job = service.declare(name, payload=of, result=object, **options)
            if options:
                policy = encode_policy(job.job_type.policy)
                (self.folder / f"{name}.policy").write_text(policy)
            ref = await (job.create() if payload is None else job.create(payload))
            return ref.id

        return self._run(ask)

    def create_later(self, name: str, payload: str, delay: str) -> str:
        """Create a job that is due after this span."""

        async def ask(service: Service) -> str:
            job = service.declare(name, payload=str, result=object)
            return (await job.create(payload, delay=delay)).id

        return self._run(ask)

    def record(self, job_id: str) -> JobRecord:
        async def ask(service: Service) -> JobRecord:
            engine = await service.connection.engine()
            (record,) = (await engine.load([job_id])).records  # type: ignore[list-item]
            assert record is not None
            return record

        return self._run(ask)

    def journal(self, job_id: str) -> list[Event]:
        async def ask(service: Service) -> list[Event]:
            return await (await service.connection.engine()).journal(job_id)  # type: ignore[arg-type]

        return self._run(ask)

    def result(self, job_id: str) -> object:
        """Wait until the job has completed; return its result."""

        async def ask(service: Service) -> object:
            (last, *_) = await (await service.connection.engine()).outcomes(job_id)  # type: ignore[arg-type]
            return json.loads(last.result or "null")

        self.state(job_id, "completed")
        return self._run(ask)

    def failure(self, job_id: str, kind: str = "retry") -> tuple[str, str]:
        """Return code and message of the error in the job's first event of this kind."""
        event = next(each for each in self.journal(job_id) if each.kind == kind)
        error: Any = (event.data or {})["error"]
        return error[0], error[1]

    def event(self, job_id: str, kind: str) -> Event:
        """Wait for the job's first event of this kind."""
        return wait_until(lambda: next((x for x in self.journal(job_id) if x.kind == kind), None))

    def kinds(self, job_id: str) -> list[str]:
        return [str(event.kind) for event in self.journal(job_id)]

    def state(self, job_id: str, wanted: str) -> JobRecord:
        """Wait until the job is in this state."""

        def look() -> JobRecord | None:
            record = self.record(job_id)
            return record if record.head.state == wanted else None

        return wait_until(look)

    def begun(self, job_id: str, attempt: int = 1) -> Begun:
        """Wait until this attempt's handler was called."""

        def look() -> Begun | None:
            path = self.folder / "begun.txt"
            lines = path.read_text().splitlines() if path.exists() else ()
            found = (Begun(*json.loads(line)) for line in lines)
            return next((x for x in found if (x.job_id, x.attempt) == (job_id, attempt)), None)

        return wait_until(look)

    def sessions(self) -> list[SessionRecord]:
        async def ask(service: Service) -> list[SessionRecord]:
            return await (await service.connection.engine()).sessions()

        return self._run(ask)

    def worker_states(self) -> list[str]:
        """Return the states of all worker processes, the newest first."""

        async def ask(service: Service) -> list[str]:
            engine = await service.connection.engine()
            now = await engine.now()
            return [worker_view(each, now).state for each in await engine.sessions()]

        return self._run(ask)

    def cancel(self, job_id: str) -> None:
        """Cancel a job by force."""

        async def ask(service: Service) -> None:
            engine = await service.connection.engine()
            await control.apply(engine, JobId(job_id), Cancel(force=True))

        self._run(ask)

    def drain(self, session: SessionId) -> None:
        async def ask(service: Service) -> None:
            assert await (await service.connection.engine()).ask_drain(session)

        self._run(ask)

    def wait_for_expired_session(self, lease: Micros) -> None:
        """Open a session that is never renewed, and wait until a worker has ended it."""

        async def open_silent(service: Service) -> SessionId:
            engine = await service.connection.engine()
            return (await engine.open_session(WorkerInfo("silent", "nowhere", 1, "0"), lease)).id

        silent = self._run(open_silent)
        wait_until(lambda: silent not in [x.id for x in self.sessions() if x.ended_at is None])

    @contextmanager
    def gate(self, name: str) -> Iterator[None]:
        """Hold the lock of a file for which handlers wait."""
        with (self.folder / name).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def worker(self, *arguments: str, **variables: str) -> Worker:
        """Start a worker."""
        log = self.folder / f"worker-{len(self._workers)}.log"
        with log.open("w") as file:
            process = start(self.folder, "worker", *arguments, stderr=file, **variables)
        self._workers.append(Worker(process, log))
        return self._workers[-1]

    def working(self, *arguments: str, **variables: str) -> Worker:
        """Start a worker for the program and wait until it works."""
        worker = self.worker("program:app", f"--grace={GRACE}s", *arguments, **variables)
        worker.wait_for_log("Working on")
        return worker

    def start_unread(self, *arguments: str) -> None:
        """Start a worker whose stderr is a pipe that is never read."""
        process = start(self.folder, "worker", *arguments)
        log = self.folder / "none.log"
        log.touch()
        self._workers.append(Worker(process, log))

    def print_state(self) -> None:
        """Print logs and tables; pytest shows them when the test has failed."""
        for worker in self._workers:
            print(f"worker {worker.process.pid}, exit code {worker.process.poll()}:\n{worker.log}")
        with suppress(sqlite3.Error), closing(sqlite3.connect(self._database)) as database:
            for table in ("trellis_event", "trellis_session"):
                print(table, *database.execute(f"select * from {table}"), sep="\n")  # noqa: S608

    def close(self) -> None:
        for worker in self._workers:
            with worker.process as process:
                if process.poll() is None:
                    for pid in descendants(process.pid):
                        with suppress(ProcessLookupError):  # it has just ended
                            os.kill(pid, signal.SIGKILL)
                    process.kill()

    def _run(self, ask: Callable[[Service], Awaitable[T]]) -> T:
        async def run() -> T:
            async with Service("shop", self.url) as service:
                return await ask(service)

        return asyncio.run(run())


def wait_until(look: Callable[[], T | None]) -> T:
    """Call `look` until it returns something true; return that."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        if found := look():
            return found
        time.sleep(0.02)
    pytest.fail("It never happened.")


def children(pid: int) -> list[int]:
    """Return the worker processes of a guardian."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def descendants(pid: int) -> list[int]:
    """Return the processes below this one, the lowest first."""
    return [each for child in children(pid) for each in (*descendants(child), child)]


def stop_process(pid: int, database: Path) -> None:
    """Stop a process while it does not write: other processes could not write then."""

    def try_to_stop() -> bool:
        os.kill(pid, signal.SIGSTOP)
        try:
            with closing(sqlite3.connect(database, timeout=0.05, isolation_level=None)) as other:
                other.execute("begin immediate")
        except sqlite3.OperationalError:
            os.kill(pid, signal.SIGCONT)
            return False
        return True

    wait_until(try_to_stop)


def is_alive(pid: int) -> bool:
    """Return whether a process that is no child of this one still runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    try:
        shop.print_state()
    finally:
        shop.close()
