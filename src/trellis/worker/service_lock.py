"""Locks outside of handlers: `with service.lock("edition", 7):`.

They are the locks that handlers take. Each has a session of its own, which is renewed on the
portal's loop while the block runs, so that a busy program keeps its locks. If the program dies, the
lock is free after one lease. If the session could not be renewed for a whole lease, another process
may have taken the lock, and the block ends with `LockLost`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import ClassVar, Final, NamedTuple, Self

from trellis.core.durations import SECOND, Micros, in_words
from trellis.core.job import Fence, SessionId
from trellis.engines.clock import uptime
from trellis.engines.port import Engine
from trellis.engines.values import LOCK_DETAILS, LockHolder, SessionLost, WorkerInfo
from trellis.errors import EngineError, LockLost
from trellis.portal import portal
from trellis.worker.locks import NamedLocks, refuse_loops, until_answered

#: Opens the engine of a service on the running loop for a while.
Borrow = Callable[[], AbstractAsyncContextManager[tuple[Engine, object]]]
_RENEWALS_PER_LEASE: Final = 3
_RETRY_PAUSE: Final = 1.0
_CALL: Final = "service.lock"


class ServiceLock:
    """One or more locks of a program, to be held with `with` or `async with`.

    Several are taken in the order of their names. A lock object is used for one block.
    """

    def __init__(
        self,
        names: Sequence[str],
        limit: float | None,
        *,
        borrow: Borrow,
        lease: Micros,
        held: dict[str, object],
    ) -> None:
        self._names = tuple(sorted(set(names)))
        self._limit = limit
        self._keeper = _SessionKeeper(self.name, borrow, lease)
        self._held = held
        self._locks: NamedLocks | None = None

    def __repr__(self) -> str:
        return f"<lock {self.name!r}>"

    @property
    def name(self) -> str:
        """The lock's name; several names are separated by commas."""
        return ", ".join(self._names)

    @property
    def is_lost(self) -> bool:
        """Whether another process may have taken the lock while the block ran."""
        return self._keeper.is_lost

    def raise_if_lost(self) -> None:
        """Raise `LockLost` if the lock was lost; for long blocks. Leaving the block does it too."""
        self._keeper.raise_if_cancelled()

    def __enter__(self) -> Self:
        refuse_loops(_CALL, self._names)
        opened = self._keeper.start()
        try:
            wait((opened,))
            self._make_locks(opened.result()).__enter__()
        except BaseException:
            self._keeper.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._locks is not None:
                self._locks.__exit__(kind, error, trace)
        finally:
            wait((self._keeper.stop(),))
        if error is None:
            self.raise_if_lost()

    async def __aenter__(self) -> Self:
        opened = self._keeper.start()
        try:
            await until_answered(opened)
            await self._make_locks(opened.result()).__aenter__()
        except BaseException:
            self._keeper.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._locks is not None:
                await self._locks.__aexit__(kind, error, trace)
        finally:
            await until_answered(self._keeper.stop())
        if error is None:
            self.raise_if_lost()

    def _make_locks(self, opened: _Opened) -> NamedLocks:
        self._locks = NamedLocks(
            self._names,
            self._limit,
            owner=self._keeper,
            fence=Fence(opened.session, 0),
            locks=_SessionLocks(opened.engine),
            held=self._held,
        )
        return self._locks


class _Opened(NamedTuple):
    engine: Engine
    session: SessionId


class _SessionLocks:
    """Takes and frees the locks of a session, on the portal's loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def take(self, fence: Fence, name: str) -> Future[LockHolder | None]:
        return portal.start(self._engine.take_lock(name, *fence))

    def free(self, fence: Fence, name: str) -> Future[bool]:
        return portal.start(self._engine.free_lock(name, *fence))


class _SessionKeeper:
    """Opens a session, renews it until it is stopped, and closes it; on the portal's loop."""

    lock_call: ClassVar = _CALL
    id: ClassVar[str | None] = None
    stopping: ClassVar[bool] = False

    def __init__(self, name: str, borrow: Borrow, lease: Micros) -> None:
        self._name = name
        self._borrow = borrow
        self._lease = lease
        self._opened: Future[_Opened] = Future()
        self._ended: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakeup: asyncio.Event | None = None
        self._stopped = False
        self._lost = False
        #: When the last successful renewal was sent, by `uptime`.
        self._renewed: Micros | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the session has ended, or was not renewed for a whole lease."""
        if self._renewed is not None and not self._ended.done():
            self._lost = self._lost or uptime() - self._renewed >= self._lease
        return self._lost

    def note_waiting(self) -> None:
        """Do nothing: no activity timeout watches a program outside of handlers."""

    def raise_if_cancelled(self) -> None:
        """Raise `LockLost` if another process may have the lock."""
        if self.is_lost:
            raise LockLost(
                f"Lock {self._name!r} was lost: this process could not renew it for "
                f"{in_words(self._lease)}, and another may have taken it. What was done under the "
                "lock is not undone; check it.",
                name=self._name,
            )

    def start(self) -> Future[_Opened]:
        """Open the session; the answer is available when the future ends."""
        self._ended = portal.start(self._run())
        return self._opened

    def stop(self) -> Future[None]:
        """Close the session, if it is open; the future ends when it is closed."""
        self._lost = self.is_lost
        self._stopped = True
        loop, wakeup = self._loop, self._wakeup
        if loop is not None and wakeup is not None:
            with suppress(RuntimeError):  # the loop has ended, and the session with it
                loop.call_soon_threadsafe(wakeup.set)
        return self._ended

    async def _run(self) -> None:
        self._wakeup = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            async with self._borrow() as (engine, _):
                sent = uptime()
                session = (await engine.open_session(_describe_program(), self._lease)).id
                self._renewed = sent
                self._opened.set_result(_Opened(engine, session))
                try:
                    await self._keep(engine, session, self._wakeup)
                finally:
                    with suppress(EngineError):
                        await engine.close_session(session)
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    async def _keep(self, engine: Engine, session: SessionId, wakeup: asyncio.Event) -> None:
        heartbeat = self._lease / SECOND / _RENEWALS_PER_LEASE
        pause = heartbeat
        while not self._stopped:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await wakeup.wait()
                return
            sent = uptime()
            try:
                answer = await engine.renew(session, ())
            except EngineError:
                pause = min(_RETRY_PAUSE, heartbeat / 3)
                continue
            if isinstance(answer, SessionLost) or self.is_lost:
                self._lost = True
                return
            self._renewed, pause = sent, heartbeat


def _describe_program() -> WorkerInfo:
    """Return what the engine stores about this process, as the holder of a lock."""
    host = socket.gethostname()
    return WorkerInfo(f"{host}-{os.getpid()}", host, os.getpid(), details=LOCK_DETAILS)
