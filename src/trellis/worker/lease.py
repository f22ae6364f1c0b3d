"""Renewing the lease from a thread, so that a busy or blocked loop does not look dead.

The thread has its own event loop and, where the engine allows several, its own engine object. It
renews and passes on the engine's answers; the worker's loop acts on them. If the worker's loop is
closed, or has not made a step for the stall limit, the worker counts as dead and its lease is no
longer renewed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from trellis.config import WorkerSettings
from trellis.core.durations import SECOND, Micros
from trellis.core.job import SessionId
from trellis.engines.clock import uptime
from trellis.engines.port import Engine
from trellis.engines.values import Renewed, SessionLost
from trellis.errors import EngineError, EngineUnavailable
from trellis.worker.attempt import HeldAttempts
from trellis.worker.loop import run_until_done
from trellis.worker.maintenance import LEADER
from trellis.worker.outage import OutageLog
from trellis.worker.reporter import Reporter
from trellis.worker.session import RenewalHealth, SessionHolder
from trellis.worker.shared_status import BLOCKED, SharedStatus

_RETRY_PAUSE: Final = 1.0
#: Heartbeats of handlers renew the lease at most once in this many seconds.
_HEARTBEAT_PAUSE: Final = 1.0
#: How often it is checked whether the loop is blocked, in seconds.
_LONGEST_WAIT: Final = 0.5
_logger = logging.getLogger(__name__)

#: Called with the session that was renewed, when the request was sent (by `uptime`), the answer.
OnRenewal = Callable[[SessionId, Micros, Renewed | SessionLost], None]


class LeaseKeeper:
    """Renews the lease of the session until stopped; a `Loop` in a thread."""

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        *,
        session: SessionHolder,
        attempts: HeldAttempts,
        health: RenewalHealth,
        settings: WorkerSettings,
        on_renewal: OnRenewal,
        reporter: Reporter,
        status: SharedStatus,
        outage: OutageLog,
    ) -> None:
        self._make_engine = make_engine
        self._session = session
        self._attempts = attempts
        self._health = health
        self._heartbeat = settings.heartbeat / SECOND
        self._limit = settings.renewal_limit
        self._on_renewal = on_renewal
        self._reporter = reporter
        self._status = status
        self._outage = outage
        self._worker_loop = asyncio.get_running_loop()
        self._worker_loop_moved = time.monotonic()
        self._stall_limit = settings.stall_limit / SECOND
        self._check_every = settings.sweep / SECOND / 2
        self._has_yielded = False
        # Whether the loop was blocked at the last look, and whether that was reported.
        self._was_blocked = self._is_blocked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakeup: asyncio.Event | None = None
        self._is_woken = False
        self._stopping = False
        self._tried = float("-inf")
        self._ended = asyncio.Event()
        #: Whether the worker's loop has exceeded the stall limit; it may still continue.
        self.is_worker_stalled = False

    def start(self) -> None:
        """Start renewing."""
        threading.Thread(target=self._run, name="trellis-lease", daemon=True).start()

    async def stop(self, limit: float | None = None) -> None:
        """Stop renewing; return when the thread has ended, or after `limit` seconds."""
        self._stopping = True
        self.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._ended.wait()

    def wake(self) -> None:
        """Renew now, because there is something to report or to ask."""
        self._is_woken = True  # for a thread that has not begun yet
        loop, wakeup = self._loop, self._wakeup
        if loop is not None and wakeup is not None:
            with suppress(RuntimeError):  # the thread has just ended
                loop.call_soon_threadsafe(wakeup.set)

    def renew_for_heartbeat(self) -> None:
        """Renew now, unless the last renewal is less than a second ago; from any thread."""
        if time.monotonic() - self._tried >= _HEARTBEAT_PAUSE:
            self.wake()

    # -- in the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(run_until_done(self._keep, name="The renewal of the lease"))
        finally:
            with suppress(RuntimeError):  # the worker's loop may be closed
                self._worker_loop.call_soon_threadsafe(self._ended.set)

    async def _keep(self) -> None:
        if self._stopping:
            return
        wakeup = self._wakeup = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._is_woken:
            wakeup.set()
        engine = self._make_engine()
        is_own = engine.capabilities.processes
        due = time.monotonic() + (0.0 if is_own else self._heartbeat)
        try:
            while not self._stopping:
                with suppress(TimeoutError):
                    async with asyncio.timeout(
                        min(due - time.monotonic(), self._check_every, _LONGEST_WAIT)
                    ):
                        await wakeup.wait()
                if not self._check_worker_loop():
                    return
                await self._yield_lead(engine)
                is_news = self._has_blocked_or_runs_again()
                if not wakeup.is_set() and not is_news and time.monotonic() < due:
                    continue
                wakeup.clear()
                if not self.is_worker_stalled and (not self._stopping or self._attempts.stopped):
                    due = time.monotonic() + await self._try(engine)
        finally:
            if is_own:
                await engine.close()

    def _check_worker_loop(self) -> bool:
        """Check whether the worker's loop still makes steps; return False if it is closed."""
        try:
            self._worker_loop.call_soon_threadsafe(self._note_worker_loop_moved)
        except RuntimeError:
            return False
        still = time.monotonic() - self._worker_loop_moved
        stalled = still > self._stall_limit
        if stalled and not self.is_worker_stalled:
            _logger.error(
                "The worker's event loop has been blocked for too long (%.0f s; the limit is "
                "%.0f s). Its lease is no longer renewed, so other workers will retry its jobs.",
                still, self._stall_limit,
            )  # fmt: skip
        self.is_worker_stalled = stalled
        return True

    def _note_worker_loop_moved(self) -> None:
        self._worker_loop_moved = time.monotonic()

    def _has_blocked_or_runs_again(self) -> bool:
        """Return whether the loop has become blocked or runs again since the last report.

        It counts as blocked if two looks find it so: after a pause of the whole process the first
        look may come before the loop's next step.
        """
        was_blocked, still = self._was_blocked, time.monotonic() - self._status.loop_moved
        self._was_blocked = still >= BLOCKED
        is_blocked = was_blocked and self._was_blocked
        if still >= BLOCKED / 2:  # before the guardian acts
            self._reporter.write_blocking()
        is_news = is_blocked != self._is_blocked
        self._is_blocked = is_blocked
        return is_news

    async def _yield_lead(self, engine: Engine) -> None:
        """Let another worker do the maintenance while this worker's loop cannot."""
        still = time.monotonic() - self._status.loop_moved
        if still < self._check_every * 2:
            self._has_yielded = False
        elif not self._has_yielded:
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(self._limit):
                    await engine.free_lock(LEADER, self._session.id)
                self._has_yielded = True

    async def _try(self, engine: Engine) -> float:
        """Renew once; return how many seconds to wait before the next time."""
        began = self._tried = time.monotonic()
        try:
            async with asyncio.timeout(self._limit):
                await self._renew(engine)
        except TimeoutError:
            silence = f"A renewal of the lease had no answer within {self._limit:g} s."
            self._outage.failed("lease", EngineUnavailable(silence), began)
        except EngineError as error:
            self._outage.failed("lease", error, began)
        except Exception:
            _logger.exception("Cannot renew the lease; will try again")
        else:
            self._outage.answered("lease")
            return self._heartbeat
        self._health.record_failure()
        return min(_RETRY_PAUSE, self._heartbeat / 3)

    async def _renew(self, engine: Engine) -> None:
        await engine.open()
        session, stopped = self._session.id, tuple(self._attempts.stopped)
        sent = uptime()
        fences = self._attempts.fences(session)
        report = self._reporter.report(is_blocked=self._is_blocked)
        answer = await engine.renew(session, fences, stopped, report)
        self._health.record_success(sent)
        self._status.set_lease_renewed(time.monotonic())
        if isinstance(answer, SessionLost):
            self._health.record_failure()
        del self._attempts.stopped[: len(stopped)]
        with suppress(RuntimeError):  # the worker's loop is closed
            self._worker_loop.call_soon_threadsafe(self._on_renewal, session, sent, answer)
