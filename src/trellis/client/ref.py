"""A reference to one job: wait for its result, read its state, follow it, change it.

A reference holds no state of the job; every question goes to the engine.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Generic, TypeVar, Unpack

from trellis import control
from trellis.client.engine_access import EngineAccess, current_override
from trellis.client.transactions import actual_connection, not_committed, refuse_while_open
from trellis.core.durations import SECOND, Duration, in_words, micros
from trellis.core.job import JobId, JobRecord
from trellis.core.states import LIVE, SUCCEEDED, State
from trellis.declaration import checks
from trellis.declaration.job_type import JobType
from trellis.engines.audit import By
from trellis.engines.port import Engine
from trellis.engines.values import Outcome
from trellis.errors import (
    JobCancelled,
    JobDead,
    JobExpired,
    JobFailed,
    JobNotCompleted,
    JobNotFound,
    JobReplaced,
    PlanUnusable,
    PreconditionFailed,
    WaitTimeout,
    no_such_job,
)
from trellis.insight.attempts import view_of
from trellis.insight.following import has_worker
from trellis.insight.views import (
    ItemView,
    JobEvent,
    JobLogLine,
    JobView,
    error_view,
    item_views,
    known_fingerprint,
)
from trellis.portal import iterated, synced

R_co = TypeVar("R_co", covariant=True)

_ENDINGS: Final[dict[State, tuple[type[JobNotCompleted], str]]] = {
    State.FAILED: (JobFailed, "failed"),
    State.STALE: (JobFailed, "was ended because its worker was lost"),
    State.CANCELLED: (JobCancelled, "was cancelled"),
    State.EXPIRED: (JobExpired, "expired: its deadline passed"),
    State.DEAD: (JobDead, "used up its attempts and waits among the dead letters"),
    State.DISMISSED: (JobReplaced, "was dismissed from the dead letters"),
    State.SKIPPED: (JobReplaced, "was skipped: a newer job of its key replaced it"),
}
#: The actor that journals and the audit name for what is done through a reference.
_ACTOR: Final = "client"


class JobRef(Generic[R_co]):
    """One job, by its id."""

    __slots__ = ("_access", "_job_type", "_tx", "id")

    def __init__(
        self, job_id: JobId, job_type: JobType, access: EngineAccess, tx: object = None
    ) -> None:
        #: The job's id, a ULID: keep it to find the job again with `job.ref(id)`.
        self.id: str = job_id
        self._job_type = job_type
        self._access = access
        # The caller's connection whose commit stores the job.
        self._tx = None if tx is None else actual_connection(tx)

    def __repr__(self) -> str:
        return f"<job {self.id} of {self._job_type.service}/{self._job_type.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobRef) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def wait(self, timeout: Duration | None = None) -> R_co:  # noqa: ASYNC109 - a duration
        """Return the result once the job has ended.

        Raises `JobFailed` (`JobDead` if it used up its attempts), `JobCancelled`, `JobExpired` or
        `JobReplaced` if it ended without one, and `WaitTimeout` if it has not ended in time; the
        job itself continues. While the engine cannot be reached, the wait continues.
        """
        seconds = None if timeout is None else checks.duration("timeout", timeout) / SECOND
        try:
            async with asyncio.timeout(seconds) as limit:
                record = await self._until_ended()
        except TimeoutError:
            if not limit.expired() or timeout is None:
                raise
            raise await self._too_late(timeout) from None
        return await self._result(record)

    wait_sync = synced(wait)

    async def status(self) -> JobView:
        """Return the job as it is now."""
        record = await self._load()
        return await view_of(await self._access.engine(), record)

    status_sync = synced(status)

    async def events(self, *, follow: bool = False) -> AsyncIterator[JobEvent]:
        """Yield what has happened to the job; with `follow`, continue until it ends."""
        follower = await self._access.follower()
        async with aclosing(follower.events(JobId(self.id), follow=follow)) as events:
            async for event in events:
                yield event

    events_sync = iterated(events)

    async def logs(self, *, follow: bool = False) -> AsyncIterator[JobLogLine]:
        """Yield the job's log; with `follow`, continue until it ends."""
        follower = await self._access.follower()
        async with aclosing(follower.logs(JobId(self.id), follow=follow)) as lines:
            async for line in lines:
                yield line

    logs_sync = iterated(logs)

    async def items(self, *, all_attempts: bool = False) -> list[ItemView]:
        """Return the job's items as its latest attempt reported them, or those of all attempts."""
        record, engine = await self._load(), await self._access.engine()
        entries = await engine.items(JobId(self.id))
        return item_views(entries, record.head, all_attempts=all_attempts)

    items_sync = synced(items)

    async def fingerprint(self) -> str:
        """Return the fingerprint of the configuration that the job was created with.

        Raises `PlanUnusable` if the job has not completed, or was created without `config=`.
        `create(..., expect=ref)` expects this fingerprint.
        """
        return plan_fingerprint(await self._load())

    fingerprint_sync = synced(fingerprint)

    async def cancel(self, reason: str = "", *, force: bool = False) -> JobView:
        """Stop the job: at once while it waits; while it runs, its handler is asked to stop.

        `force` ends a running attempt at once; its handler's result is refused. Cancelling twice is
        fine. Raises `CommandRejected` if the job has ended in another way.
        """
        engine, job_id = await self._writable(), JobId(self.id)
        record = await control.cancel(engine, job_id, reason, force=force, actor=_ACTOR)
        return await view_of(engine, record)

    cancel_sync = synced(cancel)

    async def adjust(self, **options: Unpack[control.AdjustOptions]) -> JobView:
        """Move the job to another queue, or change its priority, due time or attempts.

        Raises `CommandRejected` if it has ended, and for a new due time while it runs.
        """
        engine = await self._writable()
        record = await control.adjust(engine, JobId(self.id), actor=_ACTOR, **options)
        return await view_of(engine, record)

    adjust_sync = synced(adjust)

    async def retry(self, *, failed_items: bool = False, reason: str = "") -> JobView:
        """Run a failed job again, with all its attempts; its id stays.

        With `failed_items` it may also be dead or completed with errors, and `job.items.pending`
        gives its handler only the items that its attempts have not finished.
        """
        run = control.retry_items if failed_items else control.retry
        engine = await self._writable()
        return await view_of(engine, await run(engine, JobId(self.id), By(_ACTOR, reason)))

    retry_sync = synced(retry)

    async def replay(self, *, reason: str = "") -> JobView:
        """Run a dead letter again, with all its attempts; its id stays."""
        engine = await self._writable()
        by = By(_ACTOR, reason)
        return await view_of(engine, await control.replay(engine, JobId(self.id), by))

    replay_sync = synced(replay)

    async def dismiss(self, *, reason: str = "") -> JobView:
        """Close a dead letter for good."""
        engine = await self._writable()
        by = By(_ACTOR, reason)
        return await view_of(engine, await control.dismiss(engine, JobId(self.id), by))

    dismiss_sync = synced(dismiss)

    async def clone(self, *, reason: str = "") -> JobRef[R_co]:
        """Create a new job with the same payload and policies, in any state of this one."""
        by = By(_ACTOR, reason)
        job_id = await control.clone(await self._writable(), JobId(self.id), by)
        return JobRef(job_id, self._job_type, self._access)

    clone_sync = synced(clone)

    async def _writable(self) -> Engine:
        """Return the engine, unless an open transaction of the caller keeps it from writing."""
        engine = await self._access.engine()
        await refuse_while_open(engine)
        return engine

    async def _until_ended(self) -> JobRecord:
        follower = await self._access.follower()
        await refuse_while_open(await self._access.engine(), JobId(self.id))
        try:
            return await follower.until_ended(JobId(self.id), self._job_type, start_worker_hint)
        except JobNotFound:
            if self._tx is None:
                raise
            raise not_committed(self.id, self._tx) from None

    async def _load(self) -> JobRecord:
        engine = await self._access.engine()
        record = (await engine.load([JobId(self.id)])).records[0]
        if record is not None:
            return record
        raise no_such_job(self.id) if self._tx is None else not_committed(self.id, self._tx)

    async def _result(self, record: JobRecord) -> R_co:
        engine = await self._access.engine()
        head = record.head
        for outcome in reversed(await engine.outcomes(JobId(self.id))):
            if outcome.generation == head.generation:
                result: R_co = self._decode(record, outcome)
                return result
        raise JobNotFound(f"The outcome of job {self.id} is gone.", job_id=self.id)

    def _decode(self, record: JobRecord, outcome: Outcome) -> Any:  # noqa: ANN401 - R, by the codec
        if outcome.state in SUCCEEDED:
            text = outcome.result
            return None if text is None else self._job_type.result.decode(text, "result")
        kind, how = _ENDINGS[outcome.state]
        if outcome.error is not None and outcome.error.code == PreconditionFailed.code:
            kind = PreconditionFailed
        name = f"{record.definition.service}/{record.definition.type}"
        why = f": {outcome.error.message}" if outcome.error else ""
        end = "" if why.endswith((".", "?", "!")) else "."
        view = error_view(outcome.error)
        raise kind(
            f"Job {self.id} ({name}) {how}{why}{end}",
            job_id=self.id,
            data=None if view is None else view.data,
        )

    async def _too_late(self, waited: Duration) -> WaitTimeout:
        record = await self._load()
        engine = await self._access.engine()
        text = f"Job {self.id} is still {record.head.state} after {in_words(micros(waited))}."
        if not await has_worker(engine, self._job_type):
            text += f" {start_worker_hint(engine, self._job_type)}"
        elif current_override() is not None:
            text += (
                " In a sandbox jobs run one after the other: a handler that waits for another job "
                "needs sandbox(concurrency=2)."
            )
        else:
            text += " The job continues; wait again, or cancel it."
        return WaitTimeout(text, job_id=self.id)


def plan_fingerprint(record: JobRecord) -> str:
    """Return the fingerprint of a completed job's configuration; raise `PlanUnusable`."""
    definition, state = record.definition, record.head.state
    name = f"Job {definition.id} ({definition.service}/{definition.type})"
    if state in LIVE:
        why, advice = f"is {state}", "Wait for its end first"
    elif state is not State.COMPLETED:
        why, advice = f"ended as {state}", "Create a new one and wait for its end"
    elif definition.config is None:
        why, advice = "was created without config=", "Create it with the configuration it is about"
    elif (found := known_fingerprint(definition.config)) is None:
        why = "has secrets in its configuration that this token does not read"
        advice = f"Use a token with submit:{definition.service}"
    else:
        return found
    raise PlanUnusable(
        f"{name} {why}, so its configuration cannot be expected. {advice}. Nothing was stored.",
        existing=definition.id,
    )


def start_worker_hint(engine: Engine, job_type: JobType) -> str:
    """Return a sentence about how to start a worker for this type."""
    name = f"{job_type.service}/{job_type.name}"
    if current_override() is not None:
        return (
            f"Nothing runs automatically in a sandbox: call run_all() before you wait for {name}."
        )
    if not engine.capabilities.processes:
        return (
            f"No worker for {name} is running, and its jobs exist only in this process. "
            "Start one here: async with service.worker(): ..."
        )
    return f"No worker for {name} is running. Start one: trellis worker {_address(job_type)}"


def _address(job_type: JobType) -> str:
    """Return the service's name for the command line; words to replace where it is not known."""
    function = job_type.handler.function if job_type.handler is not None else None
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    importable = None if module is None else _importable_name(module)
    for name, value in list(vars(module).items()) if importable else ():
        # Asking any other object for its types could run code of the program.
        if type(value).__module__ == "trellis.service" and job_type in _types_of(value):
            return f"{importable}:{name}"
    return "your_module:service"


def _types_of(service: object) -> tuple[object, ...]:
    types: tuple[object, ...] = getattr(service, "job_types", ())
    return types


def _importable_name(module: ModuleType) -> str | None:
    """Return the name another program imports this module by."""
    if module.__name__ != "__main__":
        return module.__name__
    if module.__spec__ is not None:  # started with python -m
        return module.__spec__.name
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).stem
