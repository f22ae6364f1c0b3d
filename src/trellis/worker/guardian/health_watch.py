"""What a guardian looks for in a living worker process, and what it then does.

Everything is read from the shared status, so a process that does not answer hides nothing. A
stopped process (SIGSTOP, a debugger) is left alone and its lease with it: others take its jobs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from trellis.config import WorkerSettings
from trellis.core.durations import SECOND
from trellis.core.job import Fence
from trellis.engines.port import Engine
from trellis.errors import EngineError
from trellis.worker.child_process import MEGABYTE
from trellis.worker.guardian.proc_info import is_stopped, resident_memory
from trellis.worker.guardian.worker_process import Ward
from trellis.worker.maintenance import LEADER

_TICK: Final = 0.25
#: A loop moves ten times a second; after this long it is worth asking why not.
_SILENT: Final = 0.5
#: A loop that has not moved for so long is named.
_STALLED: Final = 2.0
#: How long a process may itself deal with an attempt over its timeout.
_TIMEOUT_MARGIN: Final = 1.0
_ADVICE: Final = {
    True: "A handler that computes or waits without await belongs in a plain function, which runs "
    "in a thread.",
    False: "A handler that keeps the interpreter lock belongs in a process of its own: "
    "isolation='process'.",
}
_logger = logging.getLogger("trellis.guardian")


class Watch:
    """Looks at one worker process four times a second."""

    def __init__(
        self, ward: Ward, settings: WorkerSettings, engine: Callable[[], Awaitable[Engine]]
    ) -> None:
        self._ward = ward
        self._settings = settings
        self._engine = engine
        self._stall_named = False
        self._overdue: frozenset[Fence] = frozenset()
        self._renewing: asyncio.Task[None] | None = None
        self._renewed = self._looked = self._fair_from = time.monotonic()
        #: Set when the process should be replaced.
        self.replace = asyncio.Event()
        #: Why the process was ended, if it was.
        self.ended_for: frozenset[Fence] = frozenset()
        self.ended_why = ""

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                await asyncio.sleep(_TICK)
                try:
                    await self.look(time.monotonic())
                except Exception:
                    if self._ward.ended is None:  # it may have ended under our eyes
                        _logger.exception("Looking at worker process %d failed", self._ward.pid)
        finally:
            if self._renewing is not None:
                self._renewing.cancel()

    async def look(self, now: float) -> None:
        """Look once."""
        status = self._ward.status
        if not status.loop_moved:
            return  # it is still starting
        if now - self._looked > _STALLED:
            self._fair_from = now  # we were held up ourselves, and it most likely with us
        self._looked = now
        if now - status.loop_moved > _SILENT and is_stopped(self._ward.pid):
            self._fair_from = now
            return
        still = now - max(status.loop_moved, self._fair_from)
        if still < _STALLED:
            if self._stall_named:
                _logger.warning("The loop of worker process %d moves again.", self._ward.pid)
            self._stall_named = False
            self._look_at_memory()
        else:
            await self._look_at_stall(now, still)
        unrenewed = now - max(status.lease_renewed, self._renewed)
        if unrenewed > self._settings.heartbeat / SECOND * 1.5 and not is_stopped(self._ward.pid):
            self._renew(now)

    async def _look_at_stall(self, now: float, still: float) -> None:
        overdue = frozenset(
            each.fence
            for each in self._ward.status.running()
            if each.timeout_at + _TIMEOUT_MARGIN < now
        )
        if still > self._settings.stall_limit / SECOND:
            self._end(f"Its loop had stood still for {still:.0f} s.")
        elif overdue & self._overdue:  # seen twice: no half-written record
            self._end("An attempt blocked it past its timeout.", overdue & self._overdue)
        elif not self._stall_named:
            self._stall_named = True
            await self._name_stall(still)
        self._overdue = overdue

    def _end(self, why: str, blamed: frozenset[Fence] = frozenset()) -> None:
        if not self.ended_why:
            self.ended_why, self.ended_for = why, blamed
            _logger.error("Worker process %d is ended. %s", self._ward.pid, why)
        self._ward.kill()

    async def _name_stall(self, still: float) -> None:
        frame = await self._ward.stack()
        jobs = ", ".join(each.job_id for each in self._ward.status.running())
        _logger.warning(
            "The loop of worker process %d has stood still for %.1f s, at %s. Jobs in it: %s. %s",
            self._ward.pid, still, frame or "an unknown place", jobs or "none",
            _ADVICE[frame is None or frame.in_loop],
        )  # fmt: skip

    def _look_at_memory(self) -> None:
        limit = self._settings.max_memory
        if limit is None or self.replace.is_set():
            return
        used = resident_memory(self._ward.pid)
        if used > limit:
            self.replace.set()
            _logger.warning(
                "Worker process %d uses %d MB, more than the %d MB it may: it is replaced.",
                self._ward.pid, used // MEGABYTE, limit // MEGABYTE,
            )  # fmt: skip

    def _renew(self, now: float) -> None:
        """Keep the lease of a process that lives and cannot do it itself."""
        if self._renewing is None or self._renewing.done():
            self._renewed = now
            self._renewing = asyncio.create_task(self._renew_once())

    async def _renew_once(self) -> None:
        status = self._ward.status
        if not status.session:
            return
        try:
            engine = await self._engine()
            running = status.running()
            held = [each.fence for each in running]
            await engine.renew(status.session, held, busy=len(running))
            # A process that cannot renew cannot keep everything up either: another should.
            await engine.free_lock(LEADER, status.session)
        except EngineError as error:
            _logger.info("Cannot keep the lease of process %d now: %s", self._ward.pid, error)
