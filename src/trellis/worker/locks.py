"""Named locks over all workers of an engine: `with job.lock("ledger"):`.

A lock belongs to an attempt and is valid only while the attempt is: when a worker dies or loses its
lease, or a job is cancelled, its locks are free. There is no queue: a waiting attempt requests the
lock repeatedly, and any of the waiting attempts may be next. Two tasks or threads of one handler
exclude each other, too.

A `LockService` can be called from any thread and answers with a future of `concurrent.futures`, so
coroutines, threads and (with another service) handler processes use the same lock.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias, TypeVar

from trellis.core.durations import to_datetime
from trellis.core.job import Fence
from trellis.declaration.handler_exceptions import Stopped
from trellis.engines.port import Engine
from trellis.engines.values import LockHolder
from trellis.errors import (
    CalledFromLoop,
    ConfigurationError,
    EngineClosed,
    EngineUnavailable,
    LockBusy,
    OutcomeUnknown,
)
from trellis.portal import waiting_caller
from trellis.worker.attempt import Attempt

T = TypeVar("T")

#: The beginning of lock names that are reserved for workers.
RESERVED: Final = "trellis/"
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
_random = random.Random()  # noqa: S311 - jitter needs no cryptography

#: A request under way, or how many seconds to wait before the next.
Step: TypeAlias = Future[LockHolder | None] | float


class LockService(Protocol):
    """Takes and frees locks for attempts, from any thread."""

    def take(self, fence: Fence, name: str) -> Future[LockHolder | None]:
        """Take a lock for this attempt; answer None, or the holder if another attempt has it."""

    def free(self, fence: Fence, name: str) -> Future[bool]:
        """Free a lock of this attempt."""


class EngineLocks:
    """The lock service of a worker process: calls the engine on the worker's loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    def take(self, fence: Fence, name: str) -> Future[LockHolder | None]:
        """Take the lock in the engine."""
        return self._submit(self._engine.take_lock(name, fence.session, fence.token))

    def free(self, fence: Fence, name: str) -> Future[bool]:
        """Free the lock in the engine."""
        return self._submit(self._engine.free_lock(name, fence.session, fence.token))

    def _submit(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError:
            call.close()
            raise EngineClosed("The worker has stopped, so its locks are free.") from None


class LocalLocks:
    """The lock service of a handler that runs as a function: every lock is free."""

    def take(self, fence: Fence, name: str) -> Future[LockHolder | None]:  # noqa: ARG002 - as in the protocol
        """Take the lock."""
        return _answered(None)

    def free(self, fence: Fence, name: str) -> Future[bool]:  # noqa: ARG002 - as in the protocol
        """Free the lock."""
        return _answered(True)


def _answered(answer: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(answer)
    return future


class LockOwner(Protocol):
    """What a lock needs to know about the job that takes it."""

    @property
    def stopping(self) -> bool:
        """Whether the attempt should end."""

    def raise_if_cancelled(self) -> None:
        """Raise if the job was cancelled or the attempt must stop."""


class JobLock:
    """A lock of one attempt, to be held with `with` or `async with`."""

    def __init__(
        self,
        name: str,
        limit: float | None,
        *,
        owner: LockOwner,
        attempt: Attempt,
        locks: LockService,
        held: dict[str, object],
    ) -> None:
        #: The lock's name.
        self.name = name
        self._limit = limit
        self._owner = owner
        self._attempt = attempt
        self._locks = locks
        # Which task or thread of this attempt has which lock; shared by all its locks.
        self._held = held
        self._taker: object = None

    def __repr__(self) -> str:
        return f"<lock {self.name!r} of job {self._attempt.record.definition.id}>"

    def __enter__(self) -> Self:
        self._refuse_loops()
        self._begin()
        try:
            for step in self._steps():
                if isinstance(step, float):
                    time.sleep(step)
                else:
                    wait((step,))
        except BaseException:
            self._free()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        freed = self._free()
        if freed is not None:
            wait((freed,))

    async def __aenter__(self) -> Self:
        self._begin()
        try:
            for step in self._steps():
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    await _until_answered(step)
        except BaseException:
            self._free()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        freed = self._free()
        if freed is not None:
            await _until_answered(freed)

    def _refuse_loops(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise CalledFromLoop(
            f"Waiting for lock {self.name!r} here would block the worker's event loop. "
            f"Write: async with job.lock({self.name!r})"
        )

    def _begin(self) -> None:
        self._taker = waiting_caller()
        if self._held.get(self.name) == self._taker:
            raise ConfigurationError(
                f"This handler already holds lock {self.name!r} and would wait for itself forever. "
                "Take it once, around the whole block."
            )

    def _steps(self) -> Iterator[Step]:
        """Yield what to wait for until the lock is taken; raise if it cannot be."""
        until = None if self._limit is None else time.monotonic() + self._limit
        pause = _FIRST_PAUSE
        while True:
            holder: LockHolder | None = None
            if self._held.setdefault(self.name, self._taker) == self._taker:
                request = self._locks.take(self._attempt.fence, self.name)
                yield request
                holder = self._holder(request)
                if holder is None and request.exception() is None:
                    return
            if holder is not None and (holder.session, holder.token) == self._attempt.fence:
                # The lease has lapsed and may still be renewed, or the attempt is over. The next
                # renewal decides, and stops the attempt if it is over.
                holder = None
            self._raise_if_stopped()
            left = _LONGEST_PAUSE if until is None else until - time.monotonic()
            if left <= 0:
                raise self._busy(holder)
            yield min(pause * _random.uniform(0.5, 1.0), left)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _raise_if_stopped(self) -> None:
        """End the wait if the job was cancelled or the attempt must end."""
        self._owner.raise_if_cancelled()
        if self._owner.stopping:
            raise Stopped

    def _holder(self, request: Future[LockHolder | None]) -> LockHolder | None:
        """Return the lock's holder; None if this attempt has it or the engine is unreachable."""
        try:
            return request.result()
        except CancelledError:  # the worker's loop has ended
            raise Stopped from None
        except EngineClosed:
            raise
        except (EngineUnavailable, OutcomeUnknown):  # asking again is safe
            return None

    def _busy(self, holder: LockHolder | None) -> LockBusy:
        if holder is None:
            job_id: str | None = self._attempt.record.definition.id
            reason, worker = "this worker cannot reach the engine, or this job already holds it", ""
        else:
            job_id, worker = holder.job_id, holder.worker
            who = f"job {job_id} on worker {worker}" if job_id else f"worker {worker}"
            reason = f"{who} has held it since {to_datetime(holder.since):%Y-%m-%d %H:%M:%S} UTC"
        return LockBusy(
            f"Lock {self.name!r} is not free: {reason}. Wait longer with wait=, or raise RetryIn.",
            name=self.name,
            worker=worker,
            job_id=job_id,
        )

    def _free(self) -> Future[bool] | None:
        """Free the lock; if that fails, it ends with the attempt."""
        if self._held.get(self.name) != self._taker:
            return None
        try:
            return self._locks.free(self._attempt.fence, self.name)
        except EngineClosed:
            return None
        finally:
            # Only now: the next task of this handler must request the lock after it was freed.
            del self._held[self.name]


async def _until_answered(request: Future[Any]) -> None:
    loop, answered = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the handler was abandoned, and its loop is closed
            loop.call_soon_threadsafe(answered.set)

    request.add_done_callback(wake)
    await answered.wait()
