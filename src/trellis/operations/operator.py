"""`trellis.connect()`: everything an operator can read and change, in Python.

Reading creates nothing: a missing database is an error that names its path. Every change is a
command that the lifecycle decides on; a refusal raises a typed error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import Literal, Self, Unpack

from trellis import control
from trellis.config import DEFAULT_URL, environment
from trellis.core.durations import SECOND, Duration, in_words, micros
from trellis.core.job import JobId, JobRecord
from trellis.core.states import ENDED
from trellis.declaration import checks
from trellis.engines import make_engine
from trellis.engines.port import Engine
from trellis.engines.values import GroupBy, Health
from trellis.errors import CommandRejected, ConfigurationError, EngineClosed, WaitTimeout
from trellis.insight.filters import Filters, make_filter
from trellis.insight.following import Follower
from trellis.insight.views import (
    JobEvent,
    JobLogLine,
    JobView,
    KeyView,
    LockView,
    OutcomeView,
    ProgressView,
    QueueView,
    WorkerView,
    job_event,
    job_view,
    lock_view,
    outcome_view,
    progress_view,
    worker_view,
)
from trellis.insight.why import START_WORKER, Why, explain
from trellis.operations.keys import blocking_job, find_key, list_keys
from trellis.operations.lookup import ID_LENGTH, resolve_job, resolve_worker
from trellis.operations.queues import change_queue, list_queues
from trellis.operations.selection import Found, ListedJobs, MatchingJobs, Selection
from trellis.portal import call, iterated, synced


def connect(url: str | None = None, *, actor: str = "operator") -> Operator:
    """Return the operator's view of the jobs at a URL, else at `TRELLIS_URL`, else in this folder.

    Use it with `async with`; code without an event loop uses `with`, and of each method the twin
    whose name ends in `_sync`. Journals record `actor` for what is done through it.

    >>> async def failed_syncs() -> int:
    ...     async with connect() as jobs:
    ...         return await jobs.find(type="shop/sync", state="failed").count()
    """
    url = url or environment().get("TRELLIS_URL") or DEFAULT_URL
    engine = make_engine(url, create=False)
    if not engine.capabilities.processes:
        raise ConfigurationError(
            f"Jobs at {url} exist only in the process that created them and can only be read "
            "there. In that process, use Operator(engine) with its engine."
        )
    return Operator(engine, actor=actor, opens=True)


class Operator:
    """Reads jobs and changes them.

    Every method takes a short id: the beginning or end of an id, while it is unique. A given engine
    must be open and stays open; the engine of `connect` is opened and closed by `async with`.
    """

    def __init__(self, engine: Engine, *, actor: str = "operator", opens: bool = False) -> None:
        self._engine = engine
        self._opens = opens
        self._is_open = not opens
        self._actor = actor
        self._follower = Follower(engine)

    async def __aenter__(self) -> Self:
        if self._opens:
            await self._engine.open()
            self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._opens:
            self._is_open = False
            await self._follower.close()
            await self._engine.close()

    def __enter__(self) -> Self:
        call(self.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        call(self.__aexit__, kind, error, trace)

    @property
    def engine(self) -> Engine:
        """The engine, opened."""
        if not self._is_open:
            raise EngineClosed("Open it first: async with trellis.connect(...) as jobs: ...")
        return self._engine

    # -- reading -------------------------------------------------------------------------------

    def find(self, **filters: Unpack[Filters]) -> Found:
        """Select jobs: iterate over them, page through them, or apply a verb to all of them.

        >>> async def show(jobs: Operator) -> None:
        ...     async for job in jobs.find(state=["failed", "dead"], since="1h"):
        ...         print(job.id, job.error)
        """
        make_filter(0, **filters)  # a wrong word is reported here, not at the first page
        matching = MatchingJobs(lambda now: make_filter(now, **filters))
        return Found(lambda: self.engine, matching, self._actor)

    async def pick(self, ids: Iterable[str]) -> Selection:
        """Select jobs by their ids, in this order."""
        whole = [
            JobId(each.upper()) if len(each) >= ID_LENGTH else await self._whole_id(each)
            for each in ids
        ]
        return Selection(lambda: self.engine, ListedJobs(whole), self._actor)

    async def count(self, by: GroupBy = "state", **filters: Unpack[Filters]) -> dict[str, int]:
        """Count jobs per group: by state, type, queue, service or error."""
        where = make_filter(await self.engine.now(), **filters)
        return (await self.engine.count(where, by)).groups

    async def get(self, job_id: str) -> JobView:
        """Return one job; raise `JobNotFound`, or `AmbiguousId` with the candidates."""
        return job_view(await self._record(job_id))

    async def why(self, job_id: str) -> Why:
        """Return why a job does not run, or what it does instead."""
        command = "trellis worker" if environment().get("TRELLIS_APP") else START_WORKER
        return await explain(self.engine, await self._record(job_id), command)

    async def journal(self, job_id: str) -> list[JobEvent]:
        """Return all that happened to a job, oldest first."""
        journal = await self.engine.journal(await self._whole_id(job_id))
        return [job_event(each) for each in journal]

    async def outcomes(self, job_id: str) -> list[OutcomeView]:
        """Return how each generation of a job ended, oldest first."""
        record = await self._record(job_id)
        found = await self.engine.outcomes(record.definition.id)
        return [outcome_view(each, record) for each in found]

    async def progress(self, job_id: str) -> ProgressView | None:
        """Return what the latest attempt has reported."""
        activity = await self.engine.activity(await self._whole_id(job_id))
        return None if activity is None else progress_view(activity)

    async def logs(self, job_id: str, *, follow: bool = False) -> AsyncIterator[JobLogLine]:
        """Yield the lines of a job's log, oldest first; with `follow`, until the job has ended."""
        whole = await self._whole_id(job_id)
        async with aclosing(self._follower.logs(whole, follow=follow)) as lines:
            async for line in lines:
                yield line

    async def wait(self, job_id: str, timeout: Duration | None = None) -> JobView:  # noqa: ASYNC109
        """Return a job once it has ended in any state; raise `WaitTimeout` if it has not in time.

        The wait continues while the engine cannot be reached.
        """
        record = await self._record(job_id)
        if record.head.state in ENDED:  # even if no time is left
            return job_view(record)
        limit = asyncio.timeout(
            None if timeout is None else checks.duration("timeout", timeout) / SECOND
        )
        try:
            async with limit:
                return job_view(await self._follower.until_ended(record.definition.id))
        except TimeoutError:
            if not limit.expired() or timeout is None:
                raise
        why = await self.why(record.definition.id)
        raise WaitTimeout(
            f"Job {why.job.id} is still {why.job.state} after {in_words(micros(timeout))}. "
            f"{why.text}",
            job_id=why.job.id,
        )

    # -- changing one job ----------------------------------------------------------------------

    async def cancel(self, job_id: str, reason: str = "", *, force: bool = False) -> JobView:
        """Stop a job: at once while it waits; while it runs, its handler is asked to stop.

        `force` ends a running attempt at once; its handler's result is refused. Cancelling twice is
        fine. Raises `CommandRejected` if the job has ended in another way.
        """
        whole = await self._whole_id(job_id)
        return job_view(
            await control.cancel(self.engine, whole, reason, force=force, actor=self._actor)
        )

    async def retry(self, job_id: str) -> JobView:
        """Run a failed job again, with a fresh budget of attempts."""
        whole = await self._whole_id(job_id)
        return job_view(await control.retry(self.engine, whole, actor=self._actor))

    async def replay(self, job_id: str) -> JobView:
        """Run a dead letter again, with a fresh budget of attempts."""
        whole = await self._whole_id(job_id)
        return job_view(await control.replay(self.engine, whole, actor=self._actor))

    async def dismiss(self, job_id: str) -> JobView:
        """Close a dead letter for good."""
        whole = await self._whole_id(job_id)
        return job_view(await control.dismiss(self.engine, whole, actor=self._actor))

    async def clone(self, job_id: str) -> JobView:
        """Create a new job from this one's definition, linked to it."""
        whole = await self._whole_id(job_id)
        return await self.get(await control.clone(self.engine, whole))

    async def delete(self, job_id: str) -> None:
        """Remove an ended job at once, with its journal and log."""
        record = await self._record(job_id)
        (removal,) = await self.engine.remove([record.definition.id])
        if removal == "live":
            raise CommandRejected(
                f"Job {record.definition.id} is {record.head.state}. Cancel it before deleting it.",
                job_id=record.definition.id,
            )

    # -- keys, queues, workers, locks ----------------------------------------------------------

    async def keys(self, *, service: str | None = None, type: str | None = None) -> list[KeyView]:  # noqa: A002 - the word used everywhere
        """Return every key that is held or waited for."""
        return await list_keys(self.engine, service, type)

    async def key(self, key: str) -> list[KeyView]:
        """Return one key, of each type whose jobs hold it or wait for it; raise `KeyNotFound`."""
        return await find_key(self.engine, key)

    async def release_key(self, held: str, then: Literal["retry", "fail"] = "retry") -> JobView:
        """Free a key that a lost attempt still blocks; name the key, or the job that holds it."""
        job_id = await blocking_job(self.engine, held)
        return job_view(await control.release_key(self.engine, job_id, then, actor=self._actor))

    async def queues(self) -> list[QueueView]:
        """Return every queue that has jobs or settings."""
        return await list_queues(self.engine)

    async def pause(self, queue: str) -> QueueView:
        """Start no more jobs of this queue; write it as service/queue.

        The queue alone is enough while only one service has it.
        """
        return await change_queue(self.engine, queue, paused=True)

    async def resume(self, queue: str) -> QueueView:
        """Start and accept jobs of this queue again."""
        return await change_queue(self.engine, queue, paused=False, draining=False)

    async def drain_queue(self, queue: str) -> QueueView:
        """Accept no new jobs in this queue; those that are there still run."""
        return await change_queue(self.engine, queue, draining=True)

    async def workers(self, *, ended: bool = False) -> list[WorkerView]:
        """Return the worker processes, the newest first; ended ones only with `ended`."""
        found = [worker_view(each) for each in await self.engine.sessions()]
        return [each for each in found if ended or each.state != "ended"]

    async def drain(self, worker: str) -> WorkerView:
        """Ask a worker process to finish its jobs and exit; name it, or the start of its id."""
        session = await resolve_worker(self.engine, worker)
        await self.engine.ask_drain(session.id)
        return worker_view(session._replace(draining=True))

    async def locks(self) -> list[LockView]:
        """Return the locks that are held."""
        return [lock_view(each) for each in await self.engine.locks()]

    async def health(self) -> Health:
        """Return what the engine is, how durable it is, and what is wrong with it."""
        return await self.engine.health()

    async def _record(self, job_id: str) -> JobRecord:
        return await resolve_job(self.engine, job_id)

    async def _whole_id(self, job_id: str) -> JobId:
        return (await self._record(job_id)).definition.id

    # -- for code without an event loop -----------------------------------------------------------

    pick_sync = synced(pick)
    count_sync = synced(count)
    get_sync = synced(get)
    why_sync = synced(why)
    journal_sync = synced(journal)
    outcomes_sync = synced(outcomes)
    progress_sync = synced(progress)
    logs_sync = iterated(logs)
    wait_sync = synced(wait)
    cancel_sync = synced(cancel)
    retry_sync = synced(retry)
    replay_sync = synced(replay)
    dismiss_sync = synced(dismiss)
    clone_sync = synced(clone)
    delete_sync = synced(delete)
    keys_sync = synced(keys)
    key_sync = synced(key)
    release_key_sync = synced(release_key)
    queues_sync = synced(queues)
    pause_sync = synced(pause)
    resume_sync = synced(resume)
    drain_queue_sync = synced(drain_queue)
    workers_sync = synced(workers)
    drain_sync = synced(drain)
    locks_sync = synced(locks)
    health_sync = synced(health)
