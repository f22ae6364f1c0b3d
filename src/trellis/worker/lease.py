"""Keeping the lease from a thread of its own, so that a busy or blocked loop does not look dead.

The thread has its own event loop and, where the engine allows several, its own engine object. It
only renews and passes on what the engine answers; the worker's loop acts on it. A worker whose loop
is closed, or has not moved for the stall limit, is dead all the same: its lease is renewed no more.
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
from trellis.worker.clock import uptime
from trellis.worker.maintenance import LEADER
from trellis.worker.session import RenewalHealth, SessionHolder
from trellis.worker.shared_status import SharedStatus

_RETRY: Final = 1.0
_FAREWELL: Final = 0.5
_logger = logging.getLogger(__name__)

#: Called with the session that was renewed, when that was asked (by `uptime`), and the answer.
Hear = Callable[[SessionId, Micros, Renewed | SessionLost], None]


class LeaseKeeper:
    """Renews a session until stopped."""

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
        hear: Hear,
        status: SharedStatus,
    ) -> None:
        self._make_engine = make_engine
        self._session = session
        self._attempts = attempts
        self._health = health
        self._heartbeat = heartbeat / SECOND
        self._hear = hear
        self._status = status
        self._home = asyncio.get_running_loop()
        self._home_moved = time.monotonic()
        self._home_may_stall = stall_limit / SECOND
        self._look_every = sweep / SECOND / 2
        self._has_yielded = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._stopping = False
        self._ended = asyncio.Event()
        #: Whether the worker's loop was given up; it may still come back.
        self.is_home_stalled = False

    def start(self) -> None:
        """Start renewing."""
        threading.Thread(target=self._run, name="trellis-lease", daemon=True).start()

    async def stop(self) -> None:
        """Renew no more."""
        self._stopping = True
        self.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self._ended.wait()

    def wake(self) -> None:
        """Renew now: something should be known soon."""
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            with suppress(RuntimeError):  # the thread has just ended
                loop.call_soon_threadsafe(wake.set)

    # -- in the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._keep())
        except Exception:
            _logger.exception("The lease is no longer renewed")
        finally:
            with suppress(RuntimeError):  # the worker's loop may be gone
                self._home.call_soon_threadsafe(self._ended.set)

    async def _keep(self) -> None:
        wake = self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        engine = self._make_engine()
        is_own = engine.capabilities.processes
        due = time.monotonic() + (0.0 if is_own else self._heartbeat)
        try:
            while not self._stopping:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(due - time.monotonic(), self._look_every)):
                        await wake.wait()
                if not self._knock():
                    return
                await self._yield_lead(engine)
                if not wake.is_set() and time.monotonic() < due:
                    continue
                wake.clear()
                if not self.is_home_stalled and (not self._stopping or self._attempts.stopped):
                    due = time.monotonic() + await self._try(engine)
        finally:
            if is_own:
                await engine.close()

    def _knock(self) -> bool:
        """See whether the worker's loop still moves; False if it is closed."""
        try:
            self._home.call_soon_threadsafe(self._note_home_moved)
        except RuntimeError:
            return False
        stalled = time.monotonic() - self._home_moved > self._home_may_stall
        if stalled and not self.is_home_stalled:
            _logger.error("The worker's loop has stood still for too long: it loses its jobs.")
        self.is_home_stalled = stalled
        return True

    async def _yield_lead(self, engine: Engine) -> None:
        """Let another worker keep everything up while our own loop cannot."""
        still = time.monotonic() - self._status.loop_moved
        if still < self._look_every * 2:
            self._has_yielded = False
        elif not self._has_yielded:
            with suppress(EngineError):
                await engine.free_lock(LEADER, self._session.id)
                self._has_yielded = True

    def _note_home_moved(self) -> None:
        self._home_moved = time.monotonic()

    async def _try(self, engine: Engine) -> float:
        """Renew once; return how long to wait before the next time."""
        try:
            await self._renew(engine)
        except EngineError as error:
            _logger.warning("Cannot renew the lease now: %s", error)
        except Exception:
            _logger.exception("Cannot renew the lease now")
        else:
            return self._heartbeat
        self._health.record_failure()
        return min(_RETRY, self._heartbeat / 3)

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
        with suppress(RuntimeError):  # the worker's loop is gone
            self._home.call_soon_threadsafe(self._hear, session, sent, answer)
