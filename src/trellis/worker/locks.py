"""Named locks over all workers of an engine: `with job.lock("ledger"):`.

A lock belongs to an attempt and counts only while the attempt does: whoever dies, is cancelled or
loses its lease has lost its locks, too. Nobody queues: who waits asks again and again, and one of
those who ask is next. Two tasks or threads of one handler exclude each other as well.

Where attempts ask for locks: the worker's own locks, and that of a handler run as a function.

A question is asked from any thread and answered by a future of `concurrent.futures`, so the same
desk serves coroutines, threads and, with another way to the worker, handler processes.
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
)
from trellis.portal import whose_turn
from trellis.worker.attempt import Attempt

T = TypeVar("T")


class LockService(Protocol):
    """Takes and frees locks for attempts; any thread may ask."""

    def take(self, fence: Fence, name: str) -> Future[LockHolder | None]:
        """Take a lock for this attempt; the answer is who has it, or None if it is ours now."""

    def free(self, fence: Fence, name: str) -> Future[bool]:
        """Give a lock of this attempt back."""


class EngineLocks:
    """The lock service of a worker process: asks the engine, on the worker's loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    def take(self, fence: Fence, name: str) -> Future[LockHolder | None]:
        """Ask the engine for a lock."""
        return self._ask(self._engine.take_lock(name, fence.session, fence.token))

    def free(self, fence: Fence, name: str) -> Future[bool]:
        """Give a lock back to the engine."""
        return self._ask(self._engine.free_lock(name, fence.session, fence.token))

    def _ask(self, question: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(question, self._loop)
        except RuntimeError:
            question.close()
            raise EngineClosed("The worker has ended, and its locks with it.") from None


class LocalLocks:
    """The lock service of a handler that runs as a function: there is nobody to share with."""

    def take(self, fence: Fence, name: str) -> Future[LockHolder | None]:  # noqa: ARG002 - as asked
        """Give everything."""
        return _answered(None)

    def free(self, fence: Fence, name: str) -> Future[bool]:  # noqa: ARG002 - as asked
        """Take everything back."""
        return _answered(True)


def _answered(answer: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(answer)
    return future


#: Names that begin so are for workers, not for handlers.
RESERVED: Final = "trellis/"
_SOON: Final = 0.02
_LATE: Final = 0.5
_random = random.Random()  # noqa: S311 - spreads those who ask, guards nothing

#: A question that is under way, or how long to wait before the next.
Step: TypeAlias = Future[LockHolder | None] | float


class LockOwner(Protocol):
    """What a lock must know of the job that wants it."""

    @property
    def stopping(self) -> bool:
        """Whether the attempt should end here."""

    def raise_if_cancelled(self) -> None:
        """Raise if the job was cancelled or the attempt must stop."""


class JobLock:
    """A lock of one attempt, to be held with `with` or `async with`."""

    def __init__(
        self,
        name: str,
        patience: float | None,
        *,
        owner: LockOwner,
        attempt: Attempt,
        locks: LockService,
        held: dict[str, object],
    ) -> None:
        #: The lock's name.
        self.name = name
        self._patience = patience
        self._owner = owner
        self._attempt = attempt
        self._locks = locks
        # Which task or thread of this attempt has which lock; shared by all its locks.
        self._held = held
        self._whose: object = None

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
            self._give_back()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        freed = self._give_back()
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
            self._give_back()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        freed = self._give_back()
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
        self._whose = whose_turn()
        if self._held.get(self.name) == self._whose:
            raise ConfigurationError(
                f"This handler has lock {self.name!r} already and would wait for itself for ever. "
                "Take it once, around everything."
            )

    def _steps(self) -> Iterator[Step]:
        """Yield what to wait for until the lock is ours; raise if it will not be."""
        until = None if self._patience is None else time.monotonic() + self._patience
        pause = _SOON
        while True:
            holder: LockHolder | None = None
            if self._held.setdefault(self.name, self._whose) == self._whose:
                asked = self._locks.take(self._attempt.fence, self.name)
                yield asked
                holder = self._answer(asked)
                if holder is None and asked.exception() is None:
                    return
            self._look_around(holder)
            left = _LATE if until is None else until - time.monotonic()
            if left <= 0:
                raise self._busy(holder)
            yield min(pause * _random.uniform(0.5, 1.0), left)
            pause = min(pause * 1.5, _LATE)

    def _look_around(self, holder: LockHolder | None) -> None:
        """End the wait if the job was cancelled or the attempt must end."""
        self._owner.raise_if_cancelled()
        if holder is not None and (holder.session, holder.token) == self._attempt.fence:
            self._attempt.mark_over()  # so the engine answers an attempt that is over
            raise Stopped
        if self._owner.stopping:
            raise Stopped

    def _answer(self, asked: Future[LockHolder | None]) -> LockHolder | None:
        """Return the lock's holder; None if this attempt has it, or the engine is out of reach."""
        try:
            return asked.result()
        except CancelledError:  # the worker's loop has ended
            self._attempt.mark_over()
            raise Stopped from None
        except EngineClosed:
            raise
        except EngineUnavailable:
            return None

    def _busy(self, holder: LockHolder | None) -> LockBusy:
        if holder is None:
            job_id: str | None = self._attempt.record.definition.id
            who, worker = "the engine is out of reach, or this very job has it", ""
        else:
            job_id, worker = holder.job_id, holder.worker
            what = f"job {job_id} on worker {worker}" if job_id else f"worker {worker}"
            who = f"{what} has it since {to_datetime(holder.since):%Y-%m-%d %H:%M:%S} UTC"
        return LockBusy(
            f"Lock {self.name!r} is not free: {who}. Wait longer with wait=, or raise RetryIn.",
            name=self.name,
            worker=worker,
            job_id=job_id,
        )

    def _give_back(self) -> Future[bool] | None:
        """Free the lock; if that fails, it ends with the attempt."""
        if self._held.get(self.name) != self._whose:
            return None
        try:
            return self._locks.free(self._attempt.fence, self.name)
        except EngineClosed:
            return None
        finally:
            # Only now: who is next in this handler must ask after the lock was given back.
            del self._held[self.name]


async def _until_answered(question: Future[Any]) -> None:
    loop, answered = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the handler was left behind, and its loop is closed
            loop.call_soon_threadsafe(answered.set)

    question.add_done_callback(tell)
    await answered.wait()
