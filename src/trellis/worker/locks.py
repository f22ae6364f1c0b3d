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
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar, Final, Protocol, Self, TypeAlias, TypeVar
from uuid import UUID

from trellis.core.durations import to_datetime
from trellis.core.job import Fence
from trellis.core.names import check_lock_name
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

T = TypeVar("T")

#: The beginning of lock names that are reserved for workers.
RESERVED: Final = "trellis/"
#: A part of the name of a lock: `"edition"`, 7.
LockPart: TypeAlias = str | int | UUID
#: A request under way, or how many seconds to wait before the next.
Step: TypeAlias = Future[LockHolder | None] | float
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
#: An attempt that has not asked for a lock for this long no longer waits for it, in seconds.
_GIVEN_UP: Final = 4 * _LONGEST_PAUSE
_FORGOTTEN: Final = 60.0
_random = random.Random()  # noqa: S311 - jitter needs no cryptography


def read_names(given: Sequence[object]) -> list[str]:
    """Return the names of the locks that a call asks for.

    The arguments are the parts of one name, or tuples, each with the parts of one name. Parts are
    joined by `/`, so that `("edition", 7)` and `"edition/7"` are the same lock; a `/` within one
    of several parts is escaped, so that different parts never give the same name.
    """
    names = [each if isinstance(each, tuple) else None for each in given]
    if not any(names):
        return [_read_name(tuple(given))]
    if None in names:
        raise ConfigurationError(
            "A lock has one name in parts, lock('edition', 7), or several locks each have a tuple: "
            "lock(('edition', 7), ('project', 3)). These arguments mix both."
        )
    return [_read_name(each) for each in names if each is not None]


def _read_name(parts: tuple[object, ...]) -> str:
    if not parts or not isinstance(parts[0], str):
        raise ConfigurationError("The name of a lock begins with a text, like lock('edition', 7).")
    for part in parts:
        is_empty = part == "" and len(parts) > 1
        if not isinstance(part, str | int | UUID) or isinstance(part, bool) or is_empty:
            raise ConfigurationError(
                f"{part!r} is not a part of the name of a lock. Use texts, whole numbers and "
                "UUIDs, like lock('edition', 7)."
            )
    name = str(parts[0]) if len(parts) == 1 else "/".join(map(_escaped, map(str, parts)))
    if check_lock_name(name).startswith(RESERVED):
        raise ConfigurationError(
            f"Locks whose names begin with {RESERVED!r} are reserved for Trellis. Choose another "
            f"name than {name!r}."
        )
    return name


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")


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
        #: For each lock that an attempt did not get: when it first asked, and when it last did.
        self._refused: dict[tuple[Fence, str], tuple[float, float]] = {}

    def take(self, fence: Fence, name: str) -> Future[LockHolder | None]:
        """Take the lock in the engine."""
        return self._submit(self._take(fence, name))

    async def _take(self, fence: Fence, name: str) -> LockHolder | None:
        holder = await self._engine.take_lock(name, fence.session, fence.token)
        now = time.monotonic()
        first, _ = self._refused.pop((fence, name), (now, 0.0))
        if holder is not None:
            self._refused[fence, name] = first, now
        for each, (_, last) in tuple(self._refused.items()):
            if now - last > _FORGOTTEN:
                del self._refused[each]
        return holder

    def waits(self) -> list[tuple[Fence, str, float]]:
        """Return which attempts wait for which locks, and since when by the monotonic clock.

        An attempt that waits asks again within `_LONGEST_PAUSE`; others have given up.
        """
        recently, refused = time.monotonic() - _GIVEN_UP, tuple(self._refused.items())
        return [(*each, first) for each, (first, last) in refused if last >= recently]

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
    """What a lock needs to know about what takes it: a job, or a program outside of handlers."""

    #: How a program writes the call, for messages: `job.lock`.
    lock_call: ClassVar[str]

    @property
    def id(self) -> str | None:
        """The id of the job; None outside of a handler."""

    @property
    def stopping(self) -> bool:
        """Whether the attempt should end."""

    def raise_if_cancelled(self) -> None:
        """Raise if the job was cancelled or the attempt must stop."""

    def note_waiting(self) -> None:
        """Note that it waits for a lock: a sign of life of an attempt."""


class NamedLocks:
    """One or more locks of one attempt, to be held with `with` or `async with`.

    Several are taken in the order of their names, whatever the order in the call. So two callers
    that each ask for the same locks in one call cannot wait for each other.
    """

    def __init__(
        self,
        names: Sequence[str],
        limit: float | None,
        *,
        owner: LockOwner,
        fence: Fence,
        locks: LockService,
        held: dict[str, object],
    ) -> None:
        #: The names of the locks, in the order in which they are taken.
        self.names = tuple(sorted(set(names)))
        self._limit = limit
        self._owner = owner
        self._fence = fence
        self._locks = locks
        # Which task or thread of this attempt has which lock; shared by all its locks.
        self._held = held
        self._taker: object = None

    def __repr__(self) -> str:
        return f"<lock {self.name!r} of {self._owner!r}>"

    @property
    def name(self) -> str:
        """The lock's name; several names are separated by commas."""
        return ", ".join(self.names)

    def __enter__(self) -> Self:
        refuse_loops(self._owner.lock_call, self.names)
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
        wait(self._free())

    async def __aenter__(self) -> Self:
        self._begin()
        try:
            for step in self._steps():
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    await until_answered(step)
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
        for freed in self._free():
            await until_answered(freed)

    def _begin(self) -> None:
        self._taker = waiting_caller()
        for name in self.names:
            if self._held.get(name) == self._taker:
                raise ConfigurationError(
                    f"This code already holds lock {name!r} and would wait for itself forever. "
                    "Take it once, around the whole block."
                )

    def _steps(self) -> Iterator[Step]:
        """Yield what to wait for until all locks are taken; raise if they cannot be."""
        until = None if self._limit is None else time.monotonic() + self._limit
        for name in self.names:
            yield from self._take(name, until)

    def _take(self, name: str, until: float | None) -> Iterator[Step]:
        pause = _FIRST_PAUSE
        while True:
            holder: LockHolder | None = None
            if self._held.setdefault(name, self._taker) == self._taker:
                request = self._locks.take(self._fence, name)
                yield request
                holder = self._holder(request)
                if holder is None and request.exception() is None:
                    return
            if holder is not None and (holder.session, holder.token) == self._fence:
                # The lease has lapsed and may still be renewed, or the attempt is over. The next
                # renewal decides, and stops the attempt if it is over.
                holder = None
            self._raise_if_stopped()
            self._owner.note_waiting()
            left = _LONGEST_PAUSE if until is None else until - time.monotonic()
            if left <= 0:
                raise self._busy(name, holder)
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

    def _busy(self, name: str, holder: LockHolder | None) -> LockBusy:
        if holder is None:
            job_id: str | None = self._owner.id
            reason, worker = "the engine cannot be reached, or this job already holds it", ""
        else:
            job_id, worker = holder.job_id, holder.worker
            who = f"job {job_id} on worker {worker}" if job_id else f"process {worker}"
            reason = f"{who} has held it since {to_datetime(holder.since):%Y-%m-%d %H:%M:%S} UTC"
        instead = ", or raise RetryIn" if self._owner.id else ""
        return LockBusy(
            f"Lock {name!r} is not free: {reason}. Wait longer with wait={instead}.",
            name=name,
            worker=worker,
            job_id=job_id,
        )

    def _free(self) -> list[Future[bool]]:
        """Free the locks that were taken; one that cannot be freed ends with the attempt."""
        freed: list[Future[bool]] = []
        for name in reversed(self.names):
            if self._held.get(name) != self._taker:
                continue
            try:
                freed.append(self._locks.free(self._fence, name))
            except EngineClosed:
                pass
            finally:
                # Only now: the next task of this handler must request the lock after it was freed.
                del self._held[name]
        return freed


def refuse_loops(call: str, names: Sequence[str]) -> None:
    """Raise `CalledFromLoop` where a plain `with` would block an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    arguments = repr(names[0]) if len(names) == 1 else "..."
    raise CalledFromLoop(
        f"Waiting for lock {', '.join(names)!r} here would block the event loop. "
        f"Write: async with {call}({arguments})"
    )


async def until_answered(request: Future[Any]) -> None:
    """Wait for the future without taking its result, and without cancelling it."""
    loop, answered = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the handler was abandoned, and its loop is closed
            loop.call_soon_threadsafe(answered.set)

    request.add_done_callback(wake)
    await answered.wait()
