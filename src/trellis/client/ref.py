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
from typing import Any, Final, Generic, TypeVar

from trellis import control
from trellis.client.engine_access import EngineAccess, current_override
from trellis.client.transactions import actual_connection, not_committed, refuse_while_open
from trellis.core.durations import SECOND, Duration, in_words, micros
from trellis.core.job import JobId, JobRecord
from trellis.core.states import SUCCEEDED, State
from trellis.declaration import checks
from trellis.declaration.job_type import JobType
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
    WaitTimeout,
    no_such_job,
)
from trellis.insight.following import has_worker
from trellis.insight.views import JobEvent, JobLogLine, JobView, job_view
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
#: The actor that journals name for what is done through a reference.
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

        Raises `JobFailed`, `JobDead`, `JobCancelled`, `JobExpired` or `JobReplaced` if it ended
        without one, and `WaitTimeout` if it has not ended in time; the job itself continues. While
        the engine cannot be reached, the wait continues.
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
        return job_view(await self._load())

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

    async def cancel(self, reason: str = "", *, force: bool = False) -> JobView:
        """Stop the job: at once while it waits; while it runs, its handler is asked to stop.

        `force` ends a running attempt at once; its handler's result is refused. Cancelling twice is
        fine. Raises `CommandRejected` if the job has ended in another way.
        """
        engine, job_id = await self._writable(), JobId(self.id)
        return job_view(await control.cancel(engine, job_id, reason, force=force, actor=_ACTOR))

    cancel_sync = synced(cancel)

    async def retry(self) -> JobView:
        """Run a failed job again, with all its attempts; its id stays."""
        return job_view(await control.retry(await self._writable(), JobId(self.id), actor=_ACTOR))

    retry_sync = synced(retry)

    async def replay(self) -> JobView:
        """Run a dead letter again, with all its attempts; its id stays."""
        return job_view(await control.replay(await self._writable(), JobId(self.id), actor=_ACTOR))

    replay_sync = synced(replay)

    async def dismiss(self) -> JobView:
        """Close a dead letter for good."""
        return job_view(await control.dismiss(await self._writable(), JobId(self.id), actor=_ACTOR))

    dismiss_sync = synced(dismiss)

    async def clone(self) -> JobRef[R_co]:
        """Create a new job with the same payload and policies, in any state of this one."""
        job_id = await control.clone(await self._writable(), JobId(self.id))
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
        name = f"{record.definition.service}/{record.definition.type}"
        why = f": {outcome.error.message}" if outcome.error else ""
        raise kind(f"Job {self.id} ({name}) {how}{why}.".replace("..", "."), job_id=self.id)

    async def _too_late(self, waited: Duration) -> WaitTimeout:
        record = await self._load()
        engine = await self._access.engine()
        text = f"Job {self.id} is still {record.head.state} after {in_words(micros(waited))}."
        if await has_worker(engine, self._job_type):
            text += " The job continues; wait again, or cancel it."
        else:
            text += f" {start_worker_hint(engine, self._job_type)}"
        return WaitTimeout(text, job_id=self.id)


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
