"""What a guardian checks in a living worker process: event loop, timeouts, lease, memory.

Everything is read from the shared status and from the operating system, so a blocked process can be
checked too. A stopped process (SIGSTOP, a debugger) is left alone and its lease is not renewed:
other workers take its jobs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from trellis.config import WorkerSettings
from trellis.core.durations import SECOND
from trellis.core.job import Fence
from trellis.engines.port import Engine
from trellis.engines.worker_report import BlockedLoop, WorkerReport
from trellis.errors import EngineError
from trellis.worker.child_process import MEGABYTE
from trellis.worker.guardian.stacks import Frame
from trellis.worker.guardian.worker_process import WorkerProcess
from trellis.worker.log import storable
from trellis.worker.maintenance import LEADER
from trellis.worker.shared_status import BLOCKED, Running

#: Seconds between two checks.
_INTERVAL: Final = 0.25
#: A loop runs ten times a second; after this many seconds it is checked whether it is stopped.
_SILENT: Final = 0.5
#: After this many seconds a blocked process that can report that itself has done so.
_REPORTED_BY_ITSELF: Final = 4.0
#: Seconds between two questions to the engine about the attempts of a blocked process.
_LOOK_INTERVAL: Final = 1.0
#: How long a process may deal with an overdue attempt before the guardian does, in seconds.
_TIMEOUT_MARGIN: Final = 1.0
#: By whether the event loop's own thread is blocked.
_ADVICE: Final = {
    True: "A handler that computes or waits without await belongs in a plain function, which runs "
    "in a thread.",
    False: "A handler that holds the interpreter lock belongs in a separate process: "
    "isolation='process'.",
}
_PROC: Final = Path("/proc")
_HAS_PROC: Final = (_PROC / "self" / "stat").exists()
_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")
_logger = logging.getLogger("trellis.guardian")


class HealthWatch:
    """Checks one worker process four times a second."""

    def __init__(
        self,
        process: WorkerProcess,
        settings: WorkerSettings,
        engine: Callable[[], Awaitable[Engine]],
    ) -> None:
        self._process = process
        self._settings = settings
        self._engine = engine
        self._block_logged = False
        #: Where the loop is blocked, and since when by the monotonic clock; 0: it is not.
        self._frame: Frame | None = None
        self._blocked_at = 0.0
        self._overdue: frozenset[Fence] = frozenset()
        #: When the engine was last asked whether the attempts of the blocked process are over.
        self._looked = 0.0
        self._renewal: asyncio.Task[None] | None = None
        self._renewal_failed = False
        #: Time in which guardian or process did not run is not counted as blocked.
        self._renewed = self._checked = self._counted_from = time.monotonic()
        #: Set when the process should be replaced.
        self.replace = asyncio.Event()
        #: Why the guardian killed the process; empty if it did not.
        self.kill_reason = ""
        #: The attempts that blocked the process past their timeout, if it was killed for that.
        self.killed_for: frozenset[Fence] = frozenset()
        #: The attempt that blocked the process when it was killed; None if that is unknown.
        self.culprit: Fence | None = None

    async def run(self) -> None:
        """Check until cancelled."""
        try:
            while True:
                await asyncio.sleep(_INTERVAL)
                try:
                    await self._check(time.monotonic())
                except Exception:
                    if self._process.end is None:  # a process that ended during the check is fine
                        _logger.exception("Checking worker process %d failed", self._process.pid)
        finally:
            if self._renewal is not None:
                self._renewal.cancel()

    async def _check(self, now: float) -> None:
        status = self._process.status
        self._check_sources()
        if not status.loop_moved:
            return  # it is still starting
        if now - self._checked > BLOCKED:
            self._counted_from = now  # the guardian did not run, and the process probably neither
        self._checked = now
        if now - status.loop_moved > _SILENT and is_stopped(self._process.pid):
            self._counted_from = now
            return
        blocked = now - max(status.loop_moved, self._counted_from)
        if blocked < BLOCKED:
            if self._block_logged:
                _logger.warning(
                    "The event loop of worker process %d runs again.", self._process.pid
                )
            self._block_logged = False
            self._blocked_at = 0.0
            self._check_memory()
        else:
            self._blocked_at = now - blocked
            await self._check_blocked(now, blocked)
        unrenewed = now - max(status.lease_renewed, self._renewed)
        is_late = unrenewed > self._settings.heartbeat / SECOND * 1.5
        # A process that holds the interpreter lock cannot even report that it is blocked.
        is_unreported = blocked > _REPORTED_BY_ITSELF and unrenewed > blocked - BLOCKED
        if (is_late or is_unreported) and not is_stopped(self._process.pid):
            self._start_renewal(now)

    async def _check_blocked(self, now: float, blocked: float) -> None:
        overdue = frozenset(
            each.fence
            for each in self._process.status.running()
            if each.timeout_at + _TIMEOUT_MARGIN < now
        )
        if blocked > self._settings.stall_limit / SECOND:
            self._kill(f"Its event loop was blocked for {blocked:.0f} s.")
        elif overdue & self._overdue:  # read twice, so it is no half-written record
            self._kill(
                "An attempt blocked it for longer than its timeout.", overdue & self._overdue
            )
        elif not self._block_logged:
            self._block_logged = True
            await self._log_blocked(blocked)
        elif now - self._looked >= _LOOK_INTERVAL:
            self._looked = now
            await self._kill_if_over(blocked)
        self._overdue = overdue

    async def _kill_if_over(self, blocked: float) -> None:
        """Kill the process if its loop is blocked by an attempt that is over in the engine.

        That is the way an operator's forced cancel ends a handler that nothing can interrupt.
        """
        if self._process.status.blocking() is None and blocked < _REPORTED_BY_ITSELF:
            return
        running = {each.job_id: each for each in self._inside()}
        try:
            async with asyncio.timeout(_LOOK_INTERVAL):
                loaded = await (await self._engine()).load(list(running))
        except (EngineError, TimeoutError):
            return
        over = {
            each.fence
            for each, record in zip(running.values(), loaded.records, strict=True)
            if record is None or record.head.fence != each.fence
        }
        over &= {each.fence for each in self._inside()}  # read twice, and it has not ended since
        culprit = self._process.status.blocking()
        if over and (culprit is None or culprit.fence in over):
            self._kill("A job that was cancelled or is over for another reason blocked it.")

    def _inside(self) -> list[Running]:
        """Return the attempts whose handlers run in the process and have not ended."""
        running = self._process.status.running()
        return [each for each in running if not each.isolated and not each.lost]

    def _kill(self, reason: str, overdue: frozenset[Fence] = frozenset()) -> None:
        if not self.kill_reason:
            blocking = self._process.status.blocking()
            self.culprit = None if blocking is None else blocking.fence
            self.kill_reason, self.killed_for = reason, overdue
            _logger.error("Killing worker process %d. %s", self._process.pid, reason)
        self._process.kill()

    async def _log_blocked(self, blocked: float) -> None:
        self._frame = frame = await self._process.blocking_frame()
        jobs = ", ".join(each.job_id for each in self._process.status.running())
        _logger.warning(
            "The event loop of worker process %d has been blocked for %.1f s, at %s. "
            "Jobs in it: %s. %s",
            self._process.pid, blocked, frame or "an unknown line", jobs or "none",
            _ADVICE[frame is None or frame.in_loop],
        )  # fmt: skip

    def _check_sources(self) -> None:
        changed = None if self.replace.is_set() else self._process.sources.changed()
        if changed is not None:
            self.replace.set()
            _logger.info(
                "%s has changed: worker process %d is replaced.", changed, self._process.pid
            )

    def _check_memory(self) -> None:
        limit = self._settings.max_memory
        if limit is None or self.replace.is_set():
            return
        used = resident_memory(self._process.pid)
        if used > limit:
            self.replace.set()
            _logger.warning(
                "Worker process %d uses %d MB, more than its limit of %d MB: it is replaced.",
                self._process.pid, used // MEGABYTE, limit // MEGABYTE,
            )  # fmt: skip

    def _start_renewal(self, now: float) -> None:
        """Renew the lease of a process that lives and cannot do it."""
        if self._renewal is None or self._renewal.done():
            self._renewed = now
            self._renewal = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        status = self._process.status
        if not status.session:
            return
        try:
            async with asyncio.timeout(self._settings.renewal_limit):
                engine = await self._engine()
                running = status.running()
                held = [each.fence for each in running]
                report = WorkerReport(len(running), blocked_loop=await self._blocked_loop(engine))
                await engine.renew(status.session, held, report=report)
                # A process that cannot renew cannot do the maintenance either: another one should.
                await engine.free_lock(LEADER, status.session)
        except (EngineError, TimeoutError) as error:
            # The process logs an outage too, unless it is blocked.
            _logger.log(
                logging.DEBUG if self._renewal_failed else logging.INFO,
                "The lease of worker process %d cannot be renewed now: %s",
                self._process.pid, str(error) or "no answer.",
            )  # fmt: skip
            self._renewal_failed = True
        else:
            self._renewal_failed = False

    async def _blocked_loop(self, engine: Engine) -> BlockedLoop | None:
        if not self._blocked_at:
            return None
        since = await engine.now() - round((time.monotonic() - self._blocked_at) * SECOND)
        blocking, where = self._process.status.blocking(), storable(str(self._frame or ""))
        return BlockedLoop(since, where, None if blocking is None else blocking.job_id)


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped the process."""
    return _state(pid)[:1] in {"T", "t"}


def resident_memory(pid: int) -> int:
    """Return the bytes of memory that the process uses now; 0 if that is unknown."""
    with suppress(OSError, ValueError, IndexError):
        if _HAS_PROC:
            return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE_SIZE
        return int(_ps(pid, "rss")) * 1024
    return 0


def _state(pid: int) -> str:
    with suppress(OSError, IndexError):
        if _HAS_PROC:
            # The name in parentheses may contain anything, including parentheses.
            return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        return _ps(pid, "state")
    return ""


def _ps(pid: int, column: str) -> str:
    command = ["ps", "-o", f"{column}=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
