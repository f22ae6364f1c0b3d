"""The stage of the demo: a database in a folder of its own, and worker processes to do harm to.

Whatever happens, leaving the stage ends every process it started. Their temporary files (engines
keep doorbells there) are in the stage's folder too, so that a killed process leaves none elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from trellis.cli.demo.jobs import app
from trellis.client.ref import JobRef
from trellis.core.job import JobId, SessionId
from trellis.engines.port import Engine

LEASE: Final = "2s"
_SLOTS: Final = "8"
_LOOK_EVERY: Final = 0.05


class StageFright(Exception):
    """Something that should have happened by now has not."""


class Stage:
    """Where the demo plays."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        #: Tells the audience what is being done.
        self.say = say
        self.database = folder / "demo.db"
        self.url = f"sqlite:///{self.database}"
        self.engine: Engine
        self._workers: list[subprocess.Popen[bytes]] = []
        self._scratch = folder / "tmp"
        self._scratch_before = tempfile.tempdir

    async def __aenter__(self) -> Self:
        self._scratch.mkdir()
        tempfile.tempdir = str(self._scratch)
        app.connection.point_at(self.url)
        self.engine = await app.connection.engine()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end_workers()
        await app.connection.close()
        tempfile.tempdir = self._scratch_before
        shutil.rmtree(self._scratch, ignore_errors=True)

    async def start_worker(self) -> int:
        """Start a worker process and wait until it works; return its process id."""
        command = [sys.executable, "-m", "trellis.cli", "worker", "trellis.cli.demo.jobs:app"]
        command += ["--url", self.url, "--lease", LEASE, "--concurrency", _SLOTS]
        with (self.folder / "workers.log").open("ab") as log:
            # A group of its own: Ctrl-C must reach us alone, we then end the workers ourselves.
            process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own command, started at once
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "TMPDIR": str(self._scratch)},
                start_new_session=True,
            )
        self._workers.append(process)

        async def works() -> bool:
            if process.poll() is not None:
                text = (self.folder / "workers.log").read_text(errors="replace")[-1000:]
                raise StageFright(f"A worker process ended at once: {text}")
            return process.pid in (await self.pids()).values()

        await self.until(works, "a worker process to start")
        return process.pid

    def kill(self, pid: int) -> None:
        """End a worker process the hard way."""
        os.kill(pid, signal.SIGKILL)
        for process in self._workers:
            if process.pid == pid:
                process.wait()

    @staticmethod
    def freeze(pid: int) -> None:
        """Stop a process where it stands."""
        os.kill(pid, signal.SIGSTOP)

    @staticmethod
    def thaw(pid: int) -> None:
        """Let a stopped process go on."""
        os.kill(pid, signal.SIGCONT)

    def end_workers(self) -> None:
        """End every process of the stage, stopped ones included."""
        for process in self._workers:
            with suppress(ProcessLookupError):
                process.kill()
        for process in self._workers:
            process.wait()

    async def pids(self) -> dict[SessionId, int]:
        """Return the process of each session that has not ended."""
        sessions = await self.engine.sessions()
        return {each.id: each.info.pid for each in sessions if each.ended_at is None}

    async def runner_of(self, ref: JobRef[object]) -> int:
        """Wait until the job's handler has said something; return its process id."""
        found = 0

        async def runs() -> bool:
            nonlocal found
            job_id = JobId(ref.id)
            record = (await self.engine.load([job_id])).records[0]
            activity = await self.engine.activity(job_id)
            if record is None or record.head.fence is None or activity is None:
                return False
            found = (await self.pids()).get(record.head.fence.session, 0)
            return found != 0

        await self.until(runs, "a worker to take the job")
        return found

    async def until(
        self, holds: Callable[[], Awaitable[bool]], what: str, seconds: float = 20
    ) -> None:
        """Wait for something to become true."""
        end = time.monotonic() + seconds
        while not await holds():
            if time.monotonic() > end:
                raise StageFright(f"Waited {seconds:g} s in vain for {what}.")
            await asyncio.sleep(_LOOK_EVERY)
