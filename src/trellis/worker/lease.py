"""Keeping the lease from a thread of its own, so that a busy or blocked loop does not look dead.

The thread has its own event loop and, where the engine allows several, its own engine object. It
only renews and passes on what the engine answers; the worker's loop acts on it. `steady_since` says
since when renewals have come without a gap of a lease: only such a process may judge others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from trellis.core.spans import SECOND, Micros
from trellis.engines.port import Engine
from trellis.engines.values import Renewed, SessionLost
from trellis.errors import EngineUnavailable
from trellis.worker.roster import Roster
from trellis.worker.sessions import SessionHolder

_RETRY: Final = 1.0
_FAREWELL: Final = 0.5
_logger = logging.getLogger(__name__)

Hear = Callable[[Renewed | SessionLost], None]


class LeaseKeeper:
    """Renews a session until stopped."""

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        session: SessionHolder,
        roster: Roster,
        heartbeat: Micros,
        hear: Hear,
    ) -> None:
        self._make_engine = make_engine
        self._session = session
        self._roster = roster
        self._heartbeat = heartbeat / SECOND
        self._lease = session.lease / SECOND
        self._hear = hear
        self._home = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._stopping = False
        self._ended = asyncio.Event()
        #: When the last successful renewal was sent, by the monotonic clock.
        self.renewed = time.monotonic()
        self.steady_since = self.renewed

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

    @property
    def is_steady(self) -> bool:
        """Whether this process has been in touch with the engine for one full lease."""
        now = time.monotonic()
        return now - self.renewed < self._lease <= now - self.steady_since

    @property
    def is_out_of_reach(self) -> bool:
        """Whether the lease may be over by now."""
        return time.monotonic() - self.renewed >= self._lease

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
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        engine = self._make_engine()
        is_own = engine.capabilities.processes
        pause = 0.0 if is_own else self._heartbeat
        try:
            while not self._stopping:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                self._wake.clear()
                if not self._stopping or self._roster.stopped:
                    pause = await self._try(engine)
        finally:
            if is_own:
                await engine.close()

    async def _try(self, engine: Engine) -> float:
        """Renew once; return how long to wait before the next time."""
        try:
            await self._renew(engine)
        except EngineUnavailable as error:
            _logger.warning("Cannot renew the lease now: %s", error)
        except Exception:
            _logger.exception("Cannot renew the lease now")
        else:
            return self._heartbeat
        return min(_RETRY, self._heartbeat / 3)

    async def _renew(self, engine: Engine) -> None:
        await engine.open()
        session, stopped = self._session.id, tuple(self._roster.stopped)
        sent = time.monotonic()
        answer = await engine.renew(session, self._roster.fences(session), stopped)
        if sent - self.renewed > self._lease:
            self.steady_since = sent
        self.renewed = sent
        del self._roster.stopped[: len(stopped)]
        with suppress(RuntimeError):  # the worker's loop is gone
            self._home.call_soon_threadsafe(self._hear, answer)
