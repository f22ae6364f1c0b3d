"""Starts worker processes, replaces those that end, and settles the attempts of dead ones.

`shutdown.py` lists the steps of stopping.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Final

from trellis.config import WorkerSettings
from trellis.core.states import State
from trellis.engines import make_engine
from trellis.engines.port import Engine
from trellis.engines.redaction import shown
from trellis.errors import ConflictPersists, EngineError
from trellis.worker.child_process import MEGABYTE, UNKNOWN, ProcessEnd
from trellis.worker.guardian import settle_dead
from trellis.worker.guardian.health_watch import HealthWatch
from trellis.worker.guardian.settle_dead import CommandFor, DeadProcess
from trellis.worker.guardian.shutdown import Shutdown, stop_process, wait_for_exit
from trellis.worker.guardian.stderr_relay import StderrRelay
from trellis.worker.guardian.worker_process import BuildCommand, WorkerProcess

OK: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130
#: Seconds before the next start after processes that ended early, by how many did in a row.
_BACKOFF: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
#: A process that ended within this many seconds ended early.
_EARLY: Final = 10.0
#: Seconds before attempts of a dead process are settled again after an error of the engine.
_SETTLE_AGAIN: Final = 0.2
_SUCCESS: Final = frozenset({State.COMPLETED, State.COMPLETED_WITH_ERRORS})
_logger = logging.getLogger("trellis.guardian")


class Guardian:
    """Runs `settings.processes` worker processes."""

    def __init__(
        self,
        build_command: BuildCommand,
        settings: WorkerSettings,
        relay: StderrRelay,
        *,
        once: bool = False,
    ) -> None:
        self._build_command = build_command
        self._relay = relay
        self._settings = settings
        self._once = once
        self._shutdown = Shutdown(settings.grace)
        self._opened: Engine | None = None
        self._opening = asyncio.Lock()
        self._exit_code = OK
        self._settled = 0

    def stop(self) -> None:
        """Stop gracefully; when called again, stop immediately. Called on a signal."""
        self._shutdown.request()

    async def run(self) -> int:
        """Run worker processes until stopped; return the exit code."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._settings.processes):
                    group.create_task(self._keep_running(), name=f"trellis-process-{number}")
        finally:
            if self._opened is not None:
                await self._opened.close()
        if self._shutdown.immediate.is_set():
            return INTERRUPTED
        if not self._exit_code:
            _logger.info("Stopped. Attempts settled: %s.", f"{self._settled:,}")
        return self._exit_code

    async def _keep_running(self) -> None:
        """Run one process after another."""
        early_ends = 0
        has_worked = False
        while not self._shutdown.requested.is_set():
            process = await self._start()
            if process is None:
                early_ends += 1
                await self._pause(_BACKOFF[min(early_ends, len(_BACKOFF) - 1)])
                continue
            try:
                await self._supervise(process)
            finally:
                if process.end is None:
                    process.kill()  # after an error here it must not run unsupervised
            has_worked = has_worked or process.working is not None
            if not self._should_start_next(process, has_worked=has_worked):
                return
            # A process over its memory limit right after its start counts as an early end too.
            is_early = time.monotonic() - process.started <= _EARLY
            early_ends = early_ends + 1 if is_early and not _ran_all_jobs(process) else 0
            await self._pause(_BACKOFF[min(early_ends, len(_BACKOFF) - 1)])

    async def _start(self) -> WorkerProcess | None:
        """Start a process; None if the operating system cannot start one now."""
        process: WorkerProcess | None = None
        try:
            slots = self._settings.concurrency
            process = WorkerProcess(self._build_command, slots, self._relay, self._log_working)
            await process.start()
        except OSError as error:
            _logger.error("A worker process could not be started: %s.", error)  # noqa: TRY400
            if process is not None:
                process.kill()
            return None
        return process

    def _log_working(self, process: WorkerProcess) -> None:
        types = ", ".join(process.working.types) if process.working else ""
        _logger.info(
            "Working on %s at %s in %d slots of process %d. Ctrl-C stops.",
            types, shown(process.url), self._settings.concurrency, process.pid,
        )  # fmt: skip

    async def _supervise(self, process: WorkerProcess) -> None:
        """Supervise a process until its end, and settle the attempts it leaves."""
        end = asyncio.create_task(process.wait())
        stop = asyncio.create_task(self._shutdown.requested.wait())
        opening = asyncio.create_task(process.opening.wait())
        try:
            await asyncio.wait((end, stop, opening), return_when=asyncio.FIRST_COMPLETED)
            if process.opening.is_set():
                await self._supervise_session(process, end, stop)
            else:
                process.kill()  # it has no session, so it holds no job
                await end
        finally:
            stop.cancel()
            opening.cancel()

    async def _supervise_session(
        self, process: WorkerProcess, end: asyncio.Task[ProcessEnd], stop: asyncio.Task[bool]
    ) -> None:
        watch = HealthWatch(process, self._settings, partial(self._engine, process.url))
        watching = asyncio.create_task(watch.run())
        replace = asyncio.create_task(watch.replace.wait())
        finished = asyncio.create_task(process.has_finished.wait())
        try:
            events = (end, stop, replace, finished)
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            was_asked = not end.done() and not finished.done()
            if was_asked:
                await stop_process(process, end, self._shutdown)
            elif not end.done():
                await wait_for_exit(process, end)
            await end
        finally:
            for task in (watching, replace, finished):
                task.cancel()
            await asyncio.gather(watching, replace, finished, return_exceptions=True)
        await self._settle_attempts(process, await end, watch, was_asked=was_asked)

    async def _settle_attempts(
        self, process: WorkerProcess, end: ProcessEnd, watch: HealthWatch, *, was_asked: bool
    ) -> None:
        """Settle the attempts that a process held when it ended, and log the states of its jobs."""
        if process.finished is not None:
            self._settled += process.finished.settled
        if not process.status.session:
            return  # it ended before it could hold an attempt
        command_for = _command_for(process, end, watch, was_asked=was_asked)
        left = await self._settle(process, command_for)
        states = ", ".join(f"{count} {state}" for state, count in left.items()) or "none"
        if not (was_asked or process.finished or watch.kill_reason):
            _logger.error(
                "Worker process %d %s (peak memory %d MB). Its jobs are now: %s.",
                process.pid, end.how, end.peak_memory // MEGABYTE, states,
            )  # fmt: skip
        elif left:
            _logger.info(
                "The jobs that worker process %d held at its end are now: %s.", process.pid, states
            )
        process.status.close()

    async def _settle(self, process: WorkerProcess, command_for: CommandFor) -> Counter[str]:
        """Settle for a dead process; after an error of the engine, again for a limited time."""
        is_logged = False
        dead = DeadProcess(process.status, command_for)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._shutdown.settling_time(self._settings.lease)):
                while True:
                    try:
                        engine = await self._engine(process.url)
                        return await dead.settle(engine)
                    except (EngineError, ConflictPersists) as error:
                        if not is_logged:
                            _logger.warning(
                                "The jobs of worker process %d could not be settled yet: %s",
                                process.pid, error,
                            )  # fmt: skip
                        is_logged = True
                        await asyncio.sleep(_SETTLE_AGAIN)
        _logger.warning(
            "The jobs of worker process %d could not be settled; other workers take them when its "
            "lease expires.",
            process.pid,
        )
        return Counter()

    def _should_start_next(self, process: WorkerProcess, *, has_worked: bool) -> bool:
        """Return whether a process that has ended is followed by another; note the exit code."""
        finished = process.finished
        if self._once:
            state = None if finished is None else finished.last_state
            # Stopped gracefully before any job came: that is a success.
            had_no_job = (
                finished is not None and state is None and self._shutdown.requested.is_set()
            )
            is_success = state in _SUCCESS or had_no_job
            self._exit_code = self._exit_code or (OK if is_success else _failure_code(process))
            return False
        if self._shutdown.requested.is_set():
            return False
        if not has_worked:  # it has logged why it cannot work
            self._exit_code = _failure_code(process)
            self._shutdown.requested.set()
            return False
        if process.working is None and process.end is not None:
            _logger.error(
                "Worker process %d %s before it could claim jobs.", process.pid, process.end.how
            )
        return finished is None or finished.reason != "drained"

    async def _engine(self, url: str) -> Engine:
        async with self._opening:
            if self._opened is None:
                engine = make_engine(url, create=False)
                await engine.open()
                self._opened = engine
            return self._opened

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._shutdown.requested.wait()


def _ran_all_jobs(process: WorkerProcess) -> bool:
    """Return whether a process ended because it had run the most jobs it may."""
    return process.finished is not None and process.finished.reason == "max_jobs"


def _failure_code(process: WorkerProcess) -> int:
    """Return the exit code for a process that failed: its own, unless a signal killed it."""
    code = process.end.code if process.end is not None else FAILED
    return code if 0 < code < UNKNOWN else FAILED


def _command_for(
    process: WorkerProcess, end: ProcessEnd, watch: HealthWatch, *, was_asked: bool
) -> CommandFor:
    """Return how the attempts that ran in a dead process are settled."""
    if watch.killed_for:
        return settle_dead.timeout_commands(watch.killed_for)
    # A process that was asked to stop may still crash before it does.
    was_stopped = was_asked and (process.was_killed or end.code == 0)
    if watch.kill_reason or not (was_stopped or process.finished):
        return settle_dead.crash_commands(end._replace(remark=watch.kill_reason).evidence())
    return settle_dead.release_command
