"""Starts worker processes, replaces those that end, and settles the attempts of dead ones.

`shutdown.py` lists the steps of stopping.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from functools import partial
from math import inf
from typing import Final

from trellis.config import WorkerSettings
from trellis.core.states import State
from trellis.engines import make_engine
from trellis.engines.port import Engine
from trellis.engines.redaction import shown
from trellis.errors import ConflictPersists, EngineError
from trellis.worker.child_process import MEGABYTE, UNKNOWN, ProcessEnd
from trellis.worker.guardian import settle_dead
from trellis.worker.guardian.crashed_types import CrashedTypes
from trellis.worker.guardian.health import Health
from trellis.worker.guardian.health_port import listening
from trellis.worker.guardian.health_watch import HealthWatch
from trellis.worker.guardian.leaving import Leaving
from trellis.worker.guardian.settle_dead import CommandFor, DeadProcess
from trellis.worker.guardian.shutdown import Shutdown, stop_process, wait_for_exit
from trellis.worker.guardian.source_watch import SourceWatch
from trellis.worker.guardian.stderr_relay import StderrRelay
from trellis.worker.guardian.worker_process import BuildCommand, WorkerProcess

OK: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130
#: Seconds before the next start after processes that ended early, by how many did in a row.
_BACKOFF: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
#: A process that ended within this many seconds ended early.
_EARLY: Final = 10.0
#: With `--reload`, seconds between two looks at the source files, and before a program that could
#: be loaded and did not work is started again without a change.
_SOURCES_INTERVAL: Final = 0.25
_TRY_AGAIN: Final = 5.0
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
        health_address: tuple[str, int] | None = None,
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
        self._crashed_types = CrashedTypes()
        self._processes: set[WorkerProcess] = set()
        self._sending: set[asyncio.Task[None]] = set()
        self._health_address = health_address
        self._health = Health(settings, self._processes, self._engine)

    def stop(self) -> None:
        """Stop gracefully; when called again, stop immediately. Called on a signal."""
        self._shutdown.request()

    async def run(self) -> int:
        """Run worker processes until stopped; return the exit code."""
        try:
            async with AsyncExitStack() as stack:
                if self._health_address is not None:
                    routes = self._health.routes
                    at = await stack.enter_async_context(listening(*self._health_address, routes))
                    _logger.info("Health and metrics at %s: %s.", at, ", ".join(routes))
                group = await stack.enter_async_context(asyncio.TaskGroup())
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
        """Run one process after another; one whose handlers run on ends beside its successor."""
        early_ends = 0
        has_worked = False
        leaving, sources = Leaving(self._is_drained), SourceWatch()
        async with asyncio.TaskGroup() as group:
            while not (self._shutdown.requested.is_set() or leaving.is_drained):
                sources.begin()
                process = await self._start(sources)
                if process is None:
                    early_ends += 1
                    await self._pause(_BACKOFF[min(early_ends, len(_BACKOFF) - 1)])
                    continue
                self._processes.add(process)
                supervision = group.create_task(self._supervise_or_kill(process, leaving))
                if not self._once and await leaving.replaces(process, supervision):
                    early_ends, has_worked = 0, True
                    continue
                await supervision
                has_worked = has_worked or process.working is not None
                if sources.is_used and process.working is None:  # it has logged why
                    await self._wait_for_change(process)
                    continue
                if not self._should_start_next(process, has_worked=has_worked):
                    return
                # A process over its memory limit right after its start counts as an early end too.
                is_early = time.monotonic() - process.started <= _EARLY
                is_planned = _ran_all_jobs(process) or sources.changed()
                # If one of its jobs was the cause, the next process runs their types apart.
                is_known = is_planned or process.types_inside
                early_ends = early_ends + 1 if is_early and not is_known else 0
                await self._pause(_BACKOFF[min(early_ends, len(_BACKOFF) - 1)])

    async def _supervise_or_kill(self, process: WorkerProcess, leaving: Leaving) -> None:
        try:
            await leaving.add(process)
            await self._supervise(process)
            await leaving.remove(process)
        finally:
            if process.end is None:
                process.kill()  # after an error here it must not run unsupervised
            self._processes.discard(process)

    def _add_crash(self, name: str) -> None:
        """Have all processes run a type apart of which a job has crashed its handler process."""
        self._crashed_types.add_crash(name)
        apart = self._crashed_types.apart()
        for process in self._processes:
            sending = asyncio.create_task(process.send("apart", types=apart))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    async def _wait_for_change(self, process: WorkerProcess) -> None:
        """Wait for a change of the source files; if they could be loaded, only for some time."""
        _logger.info("Waiting for a change of the source files.")
        patience = _TRY_AGAIN if process.opening.is_set() else inf
        ends = time.monotonic() + patience
        while not (process.sources.changed() or self._shutdown.requested.is_set()):
            if time.monotonic() >= ends:
                return
            await self._pause(_SOURCES_INTERVAL)

    async def _start(self, sources: SourceWatch) -> WorkerProcess | None:
        """Start a process; None if the operating system cannot start one now."""
        process: WorkerProcess | None = None
        try:
            slots = self._settings.concurrency
            process = WorkerProcess(
                self._build_command, slots, self._relay,
                on_working=self._log_working, on_crashed=self._add_crash, sources=sources,
            )  # fmt: skip
            await process.start()
            await process.send("apart", types=self._crashed_types.apart())
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
        must_leave = asyncio.create_task(process.must_leave.wait())
        finished = asyncio.create_task(process.has_finished.wait())
        try:
            events = (end, stop, replace, must_leave, finished)
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            was_asked = not end.done() and not finished.done()
            if was_asked:
                await stop_process(process, end, self._shutdown)
            elif not end.done():
                await wait_for_exit(process, end)
            await end
        finally:
            tasks = (watching, replace, must_leave, finished)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._health.add_end(process, was_asked=was_asked)
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
        self._crashed_types.add_death(process.types_inside, watch.culprit)
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
        process.was_drained = await self._is_drained(process)
        process.status.close()

    async def _is_drained(self, process: WorkerProcess) -> bool:
        """Return whether an operator has drained the process; False if the engine fails."""
        if self._shutdown.requested.is_set():
            return False
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(self._settings.renewal_limit):
                sessions = await (await self._engine(process.url)).sessions()
            return any(x.draining for x in sessions if x.id == process.status.session)
        return False

    async def _settle(self, process: WorkerProcess, command_for: CommandFor) -> Counter[str]:
        """Settle for a dead process; after an error of the engine, again for a limited time."""
        is_logged = False
        dead = DeadProcess(process.status, command_for)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._shutdown.settling_time(self._settings.lease)):
                while True:
                    try:
                        async with asyncio.timeout(self._settings.renewal_limit):
                            left = await dead.settle(await self._engine(process.url))
                    except (EngineError, ConflictPersists, TimeoutError) as error:
                        if not is_logged:
                            _logger.warning(
                                "The jobs of worker process %d could not be settled yet: %s",
                                process.pid, str(error) or "The engine does not answer.",
                            )  # fmt: skip
                        is_logged = True
                        await asyncio.sleep(_SETTLE_AGAIN)
                    else:
                        if command_for not in settle_dead.STOPPED:
                            process.types_inside = dead.types_inside
                        return left
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
            is_success = _ran_no_job(process) or (
                finished is not None and finished.last_state in _SUCCESS
            )
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
        return finished is None or finished.reason not in {"drained", "idle"}

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


def _ran_no_job(process: WorkerProcess) -> bool:
    """Return whether a process ended in order before it called a handler."""
    if process.finished is None:
        return process.was_killed and not process.opening.is_set()  # stopped while it started
    return not process.finished.begun


def _failure_code(process: WorkerProcess) -> int:
    """Return the exit code for a process that failed: its own, unless a signal killed it."""
    code = process.end.code if process.end is not None else FAILED
    return code if 0 < code < UNKNOWN else FAILED


def _command_for(
    process: WorkerProcess, end: ProcessEnd, watch: HealthWatch, *, was_asked: bool
) -> CommandFor:
    """Return how the attempts that ran in a dead process are settled."""
    if watch.killed_for:
        return settle_dead.timeout_commands(watch.killed_for, watch.culprit)
    # A process that was asked to stop may still crash before it does.
    was_stopped = was_asked and (process.was_killed or end.code == 0)
    if watch.kill_reason or not (was_stopped or process.finished):
        evidence = end._replace(remark=watch.kill_reason).evidence()
        return settle_dead.crash_commands(evidence, watch.culprit)
    return settle_dead.hand_back_command if process.is_replaced else settle_dead.release_command
