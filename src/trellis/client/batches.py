"""Batches for programs: `async with service.batch(then=job) as batch:`, and references to them.

Leaving the block seals the batch; an exception inside cancels it. Every call that opens, seals or
cancels may be repeated, so one whose reply was lost is tried again. With an idempotency key the
whole block may be run again: it finds the batch and its members by their ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, Self, TypedDict, TypeVar, Unpack

from trellis import control
from trellis.client.engine_access import EngineAccess
from trellis.client.job import Job
from trellis.client.ref import JobRef
from trellis.client.requests import CreateOptions, ManyOptions, new_job
from trellis.core.batches import (
    FireOn,
    NewBatch,
    OnFailure,
    Place,
    RepeatableIds,
    batch_id,
    is_same_fan_in,
)
from trellis.core.durations import SECOND, Duration, in_words, micros
from trellis.core.job import Relations
from trellis.core.names import check_identifier
from trellis.declaration import checks
from trellis.declaration.ids import new_job_id
from trellis.declaration.options import check_options
from trellis.declaration.signature import NO_PAYLOAD, NoPayload
from trellis.engines.audit import By
from trellis.errors import (
    BatchClosed,
    ConfigurationError,
    EngineError,
    EngineUnavailable,
    IdempotencyMismatch,
    OutcomeUnknown,
    WaitTimeout,
)
from trellis.insight import batches as insight
from trellis.insight.batches import BatchProgress, BatchView, MemberView
from trellis.portal import iterated, synced

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")
#: Seconds between two tries of a call that may be repeated.
_PAUSES: Final = (0.05, 0.2, 0.5)
_ACTOR: Final = "client"
_logger = logging.getLogger(__name__)


class BatchOptions(TypedDict, total=False):
    """What can be said about a batch."""

    #: The job that is created once when all members have finished.
    then: Job[Any, Any] | None
    #: The payload of that job, if its type takes one.
    then_payload: Any
    #: A name for people.
    name: str
    #: Create that job when all members have `finished`, or only if all are a `success`.
    on: FireOn
    #: When a member fails, the others `continue`, or `cancel_rest`.
    on_failure: OnFailure
    #: For a block that may be run again, as in a handler: with the same key it continues the same
    #: batch, members are found again, and an exception in the block leaves the batch open.
    idempotency_key: str


class BatchRef:
    """One batch, by its id."""

    __slots__ = ("_access", "id")

    def __init__(self, batch_id: str, access: EngineAccess) -> None:
        #: The id of the batch: keep it to find the batch again with `service.batch_ref(id)`.
        self.id = batch_id
        self._access = access

    def __repr__(self) -> str:
        return f"<batch {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchRef) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def status(self) -> BatchView:
        """Return the batch as it is now."""
        return await insight.load_view(await self._access.engine(), self.id)

    status_sync = synced(status)

    async def progress(self) -> BatchProgress:
        """Return how many members there are in each state, and how many have finished."""
        engine = await self._access.engine()
        return insight.progress_of(await insight.load_status(engine, self.id))

    progress_sync = synced(progress)

    async def members(self) -> AsyncIterator[MemberView]:
        """Yield the members in creation order, with results and errors; read page by page."""
        engine = await self._access.engine()
        async with aclosing(insight.members_of(engine, self.id, shows_secrets=True)) as members:
            async for member in members:
                yield member

    members_sync = iterated(members)

    async def wait(self, timeout: Duration | None = None) -> BatchView:  # noqa: ASYNC109 - a duration
        """Return the batch once it has finished, whatever became of its members.

        Raises `WaitTimeout` if it has not finished in time; the batch itself continues. The fan-in
        job is created at that moment: wait for it with `job.ref(batch.fan_in)`.
        """
        seconds = None if timeout is None else checks.duration("timeout", timeout) / SECOND
        engine = await self._access.engine()
        try:
            async with asyncio.timeout(seconds) as limit:
                return await insight.until_finished(engine, self.id)
        except TimeoutError:
            if not limit.expired() or timeout is None:
                raise
        view = await self.status()
        progress = view.progress
        done = "" if progress is None else f"{progress.finished} of {progress.total} members ended"
        if progress is not None and progress.batches:
            done += f", and {progress.finished_batches} of {progress.batches} batches in it"
        raise WaitTimeout(
            f"Batch {self.id} is still {view.state} after {in_words(micros(timeout))}: {done}. It "
            "continues; wait again, or cancel it.",
            job_id=self.id,
        )

    wait_sync = synced(wait)

    async def seal(self) -> BatchView:
        """Take no more members: the batch finishes once those it has have ended."""
        engine = await self._access.engine()
        await control.seal_batch(engine, self.id, By(_ACTOR))
        return await insight.load_view(engine, self.id)

    seal_sync = synced(seal)

    async def cancel(self, reason: str = "") -> BatchView:
        """Cancel the members that wait, ask those that run to stop, and create no fan-in job.

        Cancelling twice is fine. Raises `CommandRejected` if the batch has finished.
        """
        engine = await self._access.engine()
        await control.cancel_batch(engine, self.id, By(_ACTOR, reason))
        return await insight.load_view(engine, self.id)

    cancel_sync = synced(cancel)

    async def retry_failed(self) -> int:
        """Run members that failed or are dead again; return how many.

        The batch itself does not change: it has finished or finishes without them.
        """
        engine = await self._access.engine()
        return await control.retry_failed_members(engine, self.id, By(_ACTOR))

    retry_failed_sync = synced(retry_failed)


class OpenBatch:
    """A batch that takes members until its block ends."""

    def __init__(self, access: EngineAccess, new: NewBatch, *, is_repeatable: bool) -> None:
        self._access = access
        self._new = new
        self._is_repeatable = is_repeatable
        self._ids: RepeatableIds | None = None
        self._is_open = False
        #: The batch itself, also after the block.
        self.ref = BatchRef(new.id, access)

    def __repr__(self) -> str:
        return f"<open batch {self._new.id}>"

    @property
    def id(self) -> str:
        """The id of the batch."""
        return self._new.id

    @property
    def is_open(self) -> bool:
        """Whether it took members when its block began.

        False: it has an idempotency key, and an earlier run of the block, or an operator, has
        sealed or cancelled it. Then members that exist are found, and a new one is refused.
        """
        return self._is_open

    async def create(
        self,
        job: Job[P, R],
        payload: P | NoPayload = NO_PAYLOAD,
        /,
        **options: Unpack[CreateOptions],
    ) -> JobRef[R]:
        """Create a member, as `job.create` does.

        A job that is found instead (by `dedupe` or `idempotency_key`) is a member as well.
        """
        self._check(options)
        return await job.create_in(self._place, payload, options)

    create_sync = synced(create)

    async def create_many(
        self, job: Job[P, R], payloads: Iterable[P], /, **options: Unpack[ManyOptions]
    ) -> list[JobRef[R]]:
        """Create many members in a few round trips, as `job.create_many` does."""
        self._check(options)
        return await job.create_many_in(self._place, payloads, **options)

    create_many_sync = synced(create_many)

    def batch(self, **options: Unpack[BatchOptions]) -> OpenBatch:
        """Return a batch inside this one, which waits for it and for its fan-in job.

        An idempotency key distinguishes it from other batches inside this one. If this one has a
        key, those inside need none: they are found again by their names and fan-in jobs.
        """
        new, has_key = new_batch(self._new.service, options, self._new.id), is_keyed(options)
        if self._ids is not None and not has_key:
            new = new._replace(id=self._ids.of_batch(new))
        return OpenBatch(self._access, new, is_repeatable=has_key or self._ids is not None)

    async def _open(self) -> Self:
        engine = await self._access.engine()
        batch = await _again(lambda: engine.open_batch(self._new))
        if batch is None:
            raise BatchClosed(
                f"Batch {self._new.parent} is sealed, cancelled or finished, so no batch was "
                "opened inside it. Open it inside the `async with` block of the outer one."
            )
        if not is_same_fan_in(batch.new.then, self._new.then):
            raise IdempotencyMismatch(
                f"The idempotency key was used before for batch {self._new.id}, which has another "
                "then= or then_payload=. Nothing was stored. Use a new key for another batch."
            )
        self._is_open = batch.state == "open"
        self._ids = RepeatableIds(batch) if self._is_repeatable else None
        return self

    async def _close(self, error: BaseException | None) -> None:
        if error is None:
            await self._seal()
        elif not self._is_repeatable:
            await self._cancel(error)

    async def _seal(self) -> None:
        try:
            engine = await self._access.engine()
            await _again(lambda: engine.seal_batch(self._new.id))
        except EngineError as failure:
            failure.add_note(
                f"Batch {self._new.id} may still be open. Then it does not finish, and creates no "
                f"fan-in job. Seal it with: trellis batches seal {self._new.id}"
            )
            raise

    async def _cancel(self, error: BaseException) -> None:
        engine = await self._access.engine()
        by = By(_ACTOR, f"The block that creates it raised {type(error).__name__}.")
        try:
            await _again(lambda: control.cancel_batch(engine, self._new.id, by))
        except EngineError as failure:
            _logger.warning(
                "Batch %s stays open, because it could not be cancelled: %s. Cancel it with: "
                "trellis batches cancel %s",
                self._new.id, failure, self._new.id,
            )  # fmt: skip

    _open_sync = synced(_open)
    _close_sync = synced(_close)

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.shield(self._close(error))

    def __enter__(self) -> Self:
        return self._open_sync()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close_sync(error)

    @property
    def _place(self) -> Place:
        identify = None if self._ids is None else self._ids.of_member
        return Place(Relations(batch=self._new.id), identify=identify)

    def _check(self, options: CreateOptions | ManyOptions) -> None:
        if options.get("tx") is not None:
            raise ConfigurationError(
                "A member of a batch cannot be created in your transaction: the batch would wait "
                "for your commit. Nothing was stored. Leave tx= out, or create the job outside of "
                "the batch."
            )


def new_batch(service: str, options: BatchOptions, parent: str | None = None) -> NewBatch:
    """Return the request to open a batch; raise `ConfigurationError` if an option is wrong."""
    check_options(options, BatchOptions, "A batch has")
    then, payload = options.get("then"), options.get("then_payload", NO_PAYLOAD)
    if then is None and payload is not NO_PAYLOAD:
        raise ConfigurationError("then_payload= is the payload of then=, which is missing.")
    if then is not None and not isinstance(then, Job):
        raise ConfigurationError(f"then={then!r} is not a job. Give a function with @service.job.")
    request = None
    if then is not None:
        given = then.job_type.default_payload if payload is NO_PAYLOAD else payload
        request = new_job(then.job_type, given)
    key = options.get("idempotency_key")
    if key is not None:
        check_identifier("idempotency_key", key)
    return NewBatch(
        id=new_job_id() if key is None else batch_id(service, key, parent),
        service=service,
        name=checks.text("name", options.get("name", key or ""), "invoices"),
        fire_on=checks.one_of(FireOn, "on", options.get("on", "finished")),
        on_failure=checks.one_of(OnFailure, "on_failure", options.get("on_failure", "continue")),
        parent=parent,
        then=request,
    )


def is_keyed(options: BatchOptions) -> bool:
    """Return whether the batch has an idempotency key."""
    return options.get("idempotency_key") is not None


async def _again(action: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call that may be repeated after a lost reply or a short outage."""
    for pause in _PAUSES:
        try:
            return await action()
        except (EngineUnavailable, OutcomeUnknown):
            await asyncio.sleep(pause)
    return await action()
