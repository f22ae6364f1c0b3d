"""The job as its handler sees it.

Everything a handler reports (`progress`, `phase`, `items`, `log`, `heartbeat`) is a plain call that
queues a fenced note: it never waits, works from threads, and is refused once the attempt is over.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sized,
)
from datetime import datetime
from reprlib import repr as shown
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar, overload

from trellis.core.batches import Place
from trellis.core.durations import SECOND, Duration, to_datetime
from trellis.core.job import Context, Relations
from trellis.declaration import checks
from trellis.declaration.handler_exceptions import Cancelled, Stopped
from trellis.declaration.job_type import Reach
from trellis.declaration.signature import NO_PAYLOAD, JobArgument, NoPayload
from trellis.engines.values import Heartbeat, Phase, Progress
from trellis.errors import CapabilityMissing, ConfigurationError
from trellis.portal import synced
from trellis.worker.attempt import Attempt
from trellis.worker.items import JobItems, LoadItems, no_items
from trellis.worker.job_batch import JobBatch
from trellis.worker.locks import LockPart, LockService, NamedLocks, read_names
from trellis.worker.log import JobLog, storable_report
from trellis.worker.notes import Notes, note_life
from trellis.worker.session import Lease

T = TypeVar("T")
#: An `async for` over a plain iterable lets the loop run other tasks after this many seconds.
_TURN: Final = 0.01


class Tracked(Protocol):
    """The methods of a job that `Track` uses."""

    def raise_if_cancelled(self) -> None:
        """Raise if the job was cancelled or the attempt must stop."""

    def progress(
        self,
        current: float | None = None,
        total: float | None = None,
        *,
        step: str | None = None,
        message: str | None = None,
    ) -> None:
        """Report how far the work is."""


class Track(Generic[T]):
    """Iterates over items; each step reports progress and raises if the handler must stop.

    An `async for` over a plain iterable regularly lets the loop run other tasks, so that a long one
    cannot starve the other jobs of the process.
    """

    def __init__(
        self, job: Tracked, items: Iterable[T] | AsyncIterable[T], step: str | None
    ) -> None:
        self._job = job
        self._items = items
        self._step = step
        self._total = len(items) if isinstance(items, Sized) else None

    def __iter__(self) -> Iterator[T]:
        if not isinstance(self._items, Iterable):
            raise ConfigurationError("These items come asynchronously. Write `async for`.")
        for done, item in enumerate(self._items, 1):
            self._job.raise_if_cancelled()
            yield item
            self._report(done)

    async def __aiter__(self) -> AsyncIterator[T]:
        turn_ends = time.monotonic() + _TURN
        done = 0
        async for item in _asynchronously(self._items):
            self._job.raise_if_cancelled()
            yield item
            done += 1
            self._report(done)
            if time.monotonic() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + _TURN

    def _report(self, done: int) -> None:
        self._job.progress(done, self._total, step=self._step)


async def _asynchronously(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


P_co = TypeVar("P_co", covariant=True)
P_contra = TypeVar("P_contra", contravariant=True)
Ref = TypeVar("Ref")
Ref_co = TypeVar("Ref_co", covariant=True)


class JobEnvironment:
    """What the attempts of one process share.

    An `ActiveJob` depends on no engine and no loop: what it reports goes to `notes`, its locks come
    from `locks`. So it is the same class in a worker and in a handler process, which passes both on
    to the worker.
    """

    __slots__ = ("load_items", "locks", "notes", "reach", "read_lease", "state", "stopping")

    def __init__(
        self,
        notes: Notes,
        state: Any = None,  # noqa: ANN401 - the program's
        locks: LockService | None = None,
        load_items: LoadItems = no_items,
        read_lease: Callable[[], Lease | None] = lambda: None,
    ) -> None:
        #: Accepts the notes of attempts, from any thread.
        self.notes = notes
        #: Takes and frees locks for attempts, from any thread; None where locks are not available.
        self.locks = locks
        #: Loads what earlier attempts of a job reported about its items.
        self.load_items = load_items
        #: Returns the lease of the worker, from any thread; None: there is no worker.
        self.read_lease = read_lease
        #: The state that the lifespan of each service has set up.
        self.state = state
        #: Whether the worker stops.
        self.stopping = False
        #: By service: returns its engine, for what a handler reads and creates.
        self.reach: dict[str, Reach] = {}


class Spawns(Protocol[P_contra, Ref_co]):
    """A declared job, as far as creating one from a running job is concerned."""

    def create_in(
        self,
        place: Place,
        payload: P_contra | NoPayload,
        options: Any,  # noqa: ANN401 - those of `create`
        /,
    ) -> Coroutine[Any, Any, Ref_co]:
        """Create a job."""


class ActiveJob(JobArgument[P_co], Generic[P_co]):
    """The job a handler is working on."""

    lock_call: ClassVar = "job.lock"

    __slots__ = ("_attempt", "_environment", "_locks", "_payload", "items", "log")

    def __init__(
        self,
        payload: P_co,
        attempt: Attempt,
        environment: JobEnvironment,
        log: JobLog,
    ) -> None:
        self._payload = payload
        self._attempt = attempt
        self._environment = environment
        self._locks: dict[str, object] = {}
        #: The job's own log.
        self.log = log
        #: The job's items.
        self.items = JobItems(attempt, environment.notes)

    def __repr__(self) -> str:
        definition = self._attempt.record.definition
        return f"<{definition.service}/{definition.type} {self.id}, attempt {self.attempt}>"

    @property
    def payload(self) -> P_co:
        """The validated payload."""
        return self._payload

    @property
    def id(self) -> str:
        """The job's id."""
        return self._attempt.record.definition.id

    @property
    def service(self) -> str:
        """The service of the job."""
        return self._attempt.record.definition.service

    @property
    def type(self) -> str:
        """The job's type, without its service."""
        return self._attempt.record.definition.type

    @property
    def tags(self) -> dict[str, str]:
        """The job's tags."""
        return dict(self._attempt.record.definition.tags)

    @property
    def attempt_id(self) -> str:
        """The fence of this attempt; a receiver of its effects can distinguish attempts by it."""
        return self._attempt.fence.attempt_id

    @property
    def attempt(self) -> int:
        """Which attempt this is; 1 is the first."""
        return self._attempt.record.head.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts there may be."""
        return self._attempt.record.definition.policy.retry.attempts

    @property
    def created_at(self) -> datetime:
        """When the job was created."""
        return to_datetime(self._attempt.record.definition.created_at)

    @property
    def context(self) -> Context:
        """The request and trace this job belongs to."""
        return self._attempt.record.definition.context

    @property
    def key(self) -> str | None:
        """The key this job holds a slot of."""
        return self._attempt.record.definition.key

    @property
    def lease(self) -> Lease | None:
        """When the worker last renewed its lease, and when that ends; it protects the key.

        None once this attempt is stopped: then the lease may protect it no longer.
        """
        return None if self._attempt.stop_reason is not None else self._environment.read_lease()

    @property
    def deadline(self) -> datetime | None:
        """When the job expires."""
        deadline = self._attempt.record.definition.deadline_at
        return None if deadline is None else to_datetime(deadline)

    @property
    def config(self) -> Any:  # noqa: ANN401 - plain data of the creator
        """The configuration the job was created with."""
        text = self._attempt.record.definition.config
        return None if text is None else json.loads(text)

    @property
    def expect(self) -> str | None:
        """The hash that the creator expects the handler's environment to have."""
        return self._attempt.record.definition.expect

    @property
    def state(self) -> Any:  # noqa: ANN401 - what the program's lifespan yields
        """The state that the service's lifespan has set up for this worker process."""
        states = self._environment.state
        return states.get(self._attempt.record.definition.service) if states else None

    @property
    def cancelled(self) -> bool:
        """Whether a cancel of this job was requested or forced."""
        return self._attempt.cancel_requested

    @property
    def stopping(self) -> bool:
        """Whether this attempt should end although its job is not cancelled.

        The worker shuts down, and the handler may finish within the grace; or this attempt is
        stopped now, by its timeout, a lost lease or the job's deadline.
        """
        attempt = self._attempt
        is_stopped = attempt.stop_reason is not None and not attempt.cancel_requested
        return is_stopped or self._environment.stopping

    @property
    def batch(self) -> JobBatch | None:
        """The batch whose members have finished, in its fan-in job; the own batch in a member."""
        definition = self._attempt.record.definition
        relations = definition.relations
        batch = relations and (relations.fan_in_of or relations.batch)
        if batch is None:
            return None
        reach = self._environment.reach.get(definition.service)
        if reach is None:
            raise CapabilityMissing("Batches are not available where this handler runs.")
        return JobBatch(batch, reach)

    async def spawn(
        self,
        job: Spawns[T, Ref],
        payload: T | NoPayload = NO_PAYLOAD,
        /,
        **options: Any,  # noqa: ANN401 - those of `create`
    ) -> Ref:
        """Create a job from this one, in the same batch if this is a member of one.

        Raises `AttemptOver`, and nothing is stored, if this attempt is no longer the present one. A
        later attempt spawns again: give an `idempotency_key` to what must exist once. A job that an
        operator runs again has ended for its batch, which may have finished: it spawns outside.
        """
        definition, head = self._attempt.record
        relations = definition.relations
        batch = relations.batch if relations is not None and not head.generation else None
        place = Place(Relations(parent=definition.id, batch=batch), self._attempt.fence)
        return await job.create_in(place, payload, options)

    spawn_sync = synced(spawn)

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` after a cancel, and `Stopped` if this attempt was stopped otherwise.

        Nothing is raised during the grace of a worker that shuts down.
        """
        attempt = self._attempt
        if attempt.cancel_requested:
            raise Cancelled
        if attempt.stop_reason is not None:
            raise Stopped

    def progress(
        self,
        current: float | None = None,
        total: float | None = None,
        *,
        step: str | None = None,
        message: str | None = None,
    ) -> None:
        """Report how far the work is: `job.progress(3, 10, step="pages", message="fast")`.

        Raises `TypeError` or `ValueError`, and nothing is reported, for what is no finite number
        or no text.
        """
        if step is not None:
            step = storable_report("job.progress", "step", step, 256)
        if message is not None:
            message = storable_report("job.progress", "message", message, 1024)
        self._add_note(
            Progress(_amount("current", current), _amount("total", total), step, message)
        )

    def phase(self, name: str) -> None:
        """Report that another part of the work begins; items reported from now on belong to it."""
        self.items.phase = storable_report("job.phase", "name", name, 256)
        self._add_note(Phase(self.items.phase))

    def note_waiting(self) -> None:
        """Note that the handler waits for a lock, which is no silence."""
        note_life(self._environment.notes, self._attempt)

    def heartbeat(self) -> None:
        """Report that the work continues, for types with an activity timeout; renew the lease.

        The lease of the worker is renewed at once, at most once a second.
        """
        self._add_note(Heartbeat())

    def track(self, items: Iterable[T] | AsyncIterable[T], *, step: str | None = None) -> Track[T]:
        """Iterate over items with `for` or `async for`, and report progress.

        Between two items it does what `raise_if_cancelled` does.
        """
        return Track(self, items, step)

    @overload
    def lock(self, name: str, /, *parts: LockPart, wait: Duration | None = None) -> NamedLocks: ...
    @overload
    def lock(self, *names: tuple[LockPart, ...], wait: Duration | None = None) -> NamedLocks: ...
    def lock(self, *name: object, wait: Duration | None = None) -> NamedLocks:
        """Return a named lock, shared by all workers, to hold with `with` or `async with`.

        A name may have several parts: `job.lock("edition", 7)`. Several locks are taken together,
        always in the same order: `job.lock(("edition", 7), ("project", 3))`.

        If another job has it, this waits: without limit, or for `wait` and then raises `LockBusy`.
        While it waits, a cancel raises `Cancelled`; `Stopped` is raised if the attempt is stopped
        otherwise, and as soon as the worker shuts down. The lock is free again after the block, and
        at the latest when the attempt is over.
        """
        locks = self._environment.locks
        if locks is None:
            raise CapabilityMissing("Locks are not available where this handler runs.")
        return NamedLocks(
            read_names(name),
            None if wait is None else checks.duration("wait", wait) / SECOND,
            owner=self,
            fence=self._attempt.fence,
            locks=locks,
            held=self._locks,
        )

    def _add_note(self, body: Progress | Phase | Heartbeat) -> None:
        self._environment.notes.add(self._attempt, body)


def _amount(name: str, value: object) -> float | None:
    """Return a number of a progress as it is; raise for what cannot be stored as a number."""
    example = "Nothing was reported. Write job.progress(3, 10, step='pages', message='half')."
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"job.progress: {name}={shown(value)} is not a number. {example}")
    if not abs(value) <= sys.float_info.max:  # also not a number
        raise ValueError(f"job.progress: {name}={shown(value)} is not finite. {example}")
    return value
