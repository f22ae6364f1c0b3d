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

from trellis.core.durations import SECOND, Micros
from trellis.core.job import SessionId
from trellis.engines.port import Engine
from trellis.engines.values import Renewed, SessionLost
from trellis.errors import EngineError
from trellis.worker.attempt import HeldAttempts
from trellis.worker.loop import run_until_done
from trellis.worker.maintenance import LEADER
from trellis.worker.session import RenewalHealth, SessionHolder, uptime
from trellis.worker.shared_status import SharedStatus

_RETRY_PAUSE: Final = 1.0
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
        heartbeat: Micros,
        stall_limit: Micros,
        sweep: Micros,
        on_renewal: OnRenewal,
        status: SharedStatus,
    ) -> None:
        self._make_engine = make_engine
        self._session = session
        self._attempts = attempts
        self._health = health
        self._heartbeat = heartbeat / SECOND
        self._on_renewal = on_renewal
        self._status = status
        self._worker_loop = asyncio.get_running_loop()
        self._worker_loop_moved = time.monotonic()
        self._stall_limit = stall_limit / SECOND
        self._check_every = sweep / SECOND / 2
        self._has_yielded = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakeup: asyncio.Event | None = None
        self._stopping = False
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
        loop, wakeup = self._loop, self._wakeup
        if loop is not None and wakeup is not None:
            with suppress(RuntimeError):  # the thread has just ended
                loop.call_soon_threadsafe(wakeup.set)

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
        engine = self._make_engine()
        is_own = engine.capabilities.processes
        due = time.monotonic() + (0.0 if is_own else self._heartbeat)
        try:
            while not self._stopping:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(due - time.monotonic(), self._check_every)):
                        await wakeup.wait()
                if not self._check_worker_loop():
                    return
                await self._yield_lead(engine)
                if not wakeup.is_set() and time.monotonic() < due:
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

    async def _yield_lead(self, engine: Engine) -> None:
        """Let another worker do the maintenance while this worker's loop cannot."""
        still = time.monotonic() - self._status.loop_moved
        if still < self._check_every * 2:
            self._has_yielded = False
        elif not self._has_yielded:
            with suppress(EngineError):
                await engine.free_lock(LEADER, self._session.id)
                self._has_yielded = True

    async def _try(self, engine: Engine) -> float:
        """Renew once; return how many seconds to wait before the next time."""
        try:
            await self._renew(engine)
        except EngineError as error:
            _logger.warning("Cannot renew the lease; will try again: %s", error)
        except Exception:
            _logger.exception("Cannot renew the lease; will try again")
        else:
            return self._heartbeat
        self._health.record_failure()
        return min(_RETRY_PAUSE, self._heartbeat / 3)

    async def _renew(self, engine: Engine) -> None:
        await engine.open()
        session, stopped = self._session.id, tuple(self._attempts.stopped)
        sent = uptime()
        fences, busy = self._attempts.fences(session), len(self._attempts.running)
        answer = await engine.renew(session, fences, stopped, busy)
        self._health.record_success(sent)
        self._status.set_lease_renewed(time.monotonic())
        if isinstance(answer, SessionLost):
            self._health.record_failure()
        del self._attempts.stopped[: len(stopped)]
        with suppress(RuntimeError):  # the worker's loop is closed
            self._worker_loop.call_soon_threadsafe(self._on_renewal, session, sent, answer)
