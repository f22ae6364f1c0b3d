"""`trellis.connect()`: everything an operator can read and change, in Python.

Reading creates nothing: a missing database is an error that names its path. Every change is a
command that the lifecycle decides on; a refusal raises a typed error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from datetime import timedelta
from types import TracebackType
from typing import Literal, Self, Unpack

from trellis import control
from trellis.config import DEFAULT_URL, environment
from trellis.core.durations import SECOND, Duration, in_words, micros
from trellis.core.fairness import check_aging
from trellis.core.job import JobId, JobRecord
from trellis.core.states import ENDED
from trellis.declaration import checks
from trellis.engines import make_engine
from trellis.engines.audit import OPERATOR, By, check_actor
from trellis.engines.operating import Drain
from trellis.engines.port import Engine
from trellis.engines.values import Health
from trellis.errors import CommandRejected, ConfigurationError, EngineClosed, WaitTimeout
from trellis.insight.attempts import AttemptView, attempts, view_of
from trellis.insight.audit import AuditView
from trellis.insight.feed import ChangeFeed, ChangeFilters
from trellis.insight.filters import Filters, Several, make_filter, read_groups
from trellis.insight.following import Follower
from trellis.insight.graph import GRAPH_LIMIT, JobGraph, LinkView, graph_of, link_view
from trellis.insight.shared_views import DrainView, KeyView, LockView, QueueView, lock_view
from trellis.insight.views import (
    ItemView,
    JobEvent,
    JobLogLine,
    JobView,
    OutcomeView,
    ProgressView,
    item_views,
    job_event,
    outcome_view,
    progress_view,
)
from trellis.insight.why import START_WORKER, Why, explain
from trellis.insight.worker_views import WorkerView, worker_view
from trellis.operations.archives import ArchiveOperations
from trellis.operations.audit import AuditFilters, list_audit
from trellis.operations.batches import Batches
from trellis.operations.contracts import OperatorContracts
from trellis.operations.keys import blocking_job, find_key, list_keys
from trellis.operations.limits import LimitOperations
from trellis.operations.lookup import ID_LENGTH, resolve_job, resolve_worker
from trellis.operations.queues import change_drain, change_queue, drain_history, list_queues
from trellis.operations.schedules import Schedules
from trellis.operations.selection import Found, ListedJobs, MatchingJobs, Selection
from trellis.operations.tokens import TokenOperations
from trellis.portal import call, iterated, synced


def connect(url: str | None = None, *, actor: str | None = None) -> Operator:
    """Return the operator's view of the jobs at a URL, else at `TRELLIS_URL`, else in this folder.

    Use it with `async with`; code without an event loop uses `with`, and of each method the twin
    whose name ends in `_sync`. Journals and the audit record `actor` for what is done through it,
    else `TRELLIS_ACTOR`, else "operator".

    >>> async def failed_syncs() -> int:
    ...     async with connect() as jobs:
    ...         return await jobs.find(type="shop/sync", state="failed").count()
    """
    settings = environment()
    url = url or settings.get("TRELLIS_URL") or DEFAULT_URL
    actor = actor or settings.get("TRELLIS_ACTOR") or OPERATOR.actor
    engine = make_engine(url, create=False)
    if not engine.capabilities.processes:
        raise ConfigurationError(
            f"Jobs at {url} exist only in the process that created them and can only be read "
            "there. In that process, use Operator(engine) with its engine."
        )
    return Operator(engine, actor=actor, opens=True)


class Operator(LimitOperations, OperatorContracts, ArchiveOperations, TokenOperations):
    """Reads jobs and changes them.

    Every method takes a short id: the beginning or end of an id, while it is unique. A given engine
    must be open and stays open; the engine of `connect` is opened and closed by `async with`.
    """

    def __init__(self, engine: Engine, *, actor: str = "operator", opens: bool = False) -> None:
        self._engine = engine
        self._opens = opens
        self._is_open = not opens
        self._actor = check_actor(actor)
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

    @property
    def batches(self) -> Batches:
        """The batches: read them, seal them, cancel them."""
        return Batches(lambda: self.engine, self._actor)

    @property
    def schedules(self) -> Schedules:
        """The schedules: read them, change them, run them."""
        return Schedules(lambda: self.engine, self._actor)

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

    async def count(self, by: str = "state", **filters: Unpack[Filters]) -> dict[str, int]:
        """Count jobs per group: by state, type, queue, service, error, worker or value of a tag.

        A type is written service/type, a queue service/queue; `by="tag:tenant"` counts by the
        values of the tag `tenant`. Jobs without an error or without the tag are in the group "".
        """
        groups = read_groups(by)
        where = make_filter(await self.engine.now(), **filters)
        counts = await self.engine.count(where, *groups)
        return {"/".join(names): number for names, number in counts.combinations.items()}

    async def get(self, job_id: str) -> JobView:
        """Return one job; raise `JobNotFound`, or `AmbiguousId` with the candidates."""
        return await view_of(self.engine, await self._record(job_id))

    async def why(self, job_id: str) -> Why:
        """Return why a job does not run, or what it does instead."""
        command = "trellis worker" if environment().get("TRELLIS_APP") else START_WORKER
        return await explain(self.engine, await self._record(job_id), command)

    async def links(self, job_id: str) -> list[LinkView]:
        """Return which jobs a job waits or waited for, and which wait or waited for it."""
        whole = await self._whole_id(job_id)
        return [link_view(each) for each in await self.engine.links([whole])]

    async def graph(self, job_id: str, limit: int = GRAPH_LIMIT) -> JobGraph:
        """Return the jobs connected to a job by links and parents, at most this number."""
        return await graph_of(self.engine, await self._record(job_id), limit)

    async def journal(self, job_id: str) -> list[JobEvent]:
        """Return all that happened to a job, oldest first."""
        journal = await self.engine.journal(await self._whole_id(job_id))
        return [job_event(each) for each in journal]

    async def outcomes(self, job_id: str) -> list[OutcomeView]:
        """Return how each generation of a job ended, oldest first."""
        record = await self._record(job_id)
        found = await self.engine.outcomes(record.definition.id)
        return [outcome_view(each, record) for each in found]

    async def attempts(self, job_id: str) -> list[AttemptView]:
        """Return every attempt of a job, oldest first: who ran it, when, and how it ended."""
        return await attempts(self.engine, await self._whole_id(job_id))

    async def progress(self, job_id: str) -> ProgressView | None:
        """Return what the latest attempt has reported."""
        activity = await self.engine.activity(await self._whole_id(job_id))
        return None if activity is None else progress_view(activity)

    async def items(self, job_id: str, *, all_attempts: bool = False) -> list[ItemView]:
        """Return a job's items as its latest attempt reported them, or those of all attempts."""
        record = await self._record(job_id)
        entries = await self.engine.items(record.definition.id)
        return item_views(entries, record.head, all_attempts=all_attempts)

    async def logs(self, job_id: str, *, follow: bool = False) -> AsyncIterator[JobLogLine]:
        """Yield the lines of a job's log, oldest first; with `follow`, until the job has ended."""
        whole = await self._whole_id(job_id)
        async with aclosing(self._follower.logs(whole, follow=follow)) as lines:
            async for line in lines:
                yield line

    def changes(
        self,
        after: str | None = None,
        *,
        service: Several | None = None,
        **filters: Unpack[ChangeFilters],
    ) -> ChangeFeed:
        """Iterate over everything that happens to jobs, without end.

        `after` is the cursor of a change: from there on, each change comes at least once. "now":
        what happens after the iteration began; None: all that is kept. Raises `CursorExpired` if
        changes after the cursor were removed by retention.
        """
        return ChangeFeed(self._following, after, service, **filters)

    async def _following(self) -> tuple[Engine, Follower]:
        return self.engine, self._follower

    async def wait(self, job_id: str, timeout: Duration | None = None) -> JobView:  # noqa: ASYNC109
        """Return a job once it has ended in any state; raise `WaitTimeout` if it has not in time.

        The wait continues while the engine cannot be reached.
        """
        record = await self._record(job_id)
        if record.head.state in ENDED:  # even if no time is left
            return await view_of(self.engine, record)
        limit = asyncio.timeout(
            None if timeout is None else checks.duration("timeout", timeout) / SECOND
        )
        try:
            async with limit:
                return await view_of(
                    self.engine, await self._follower.until_ended(record.definition.id)
                )
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
        return await view_of(
            self.engine,
            await control.cancel(self.engine, whole, reason, force=force, actor=self._actor),
        )

    async def adjust(self, job_id: str, **options: Unpack[control.AdjustOptions]) -> JobView:
        """Move a live job to another queue, or change its priority, due time or attempts.

        Raises `CommandRejected` for a job that has ended, and for a new due time of a running one.
        """
        whole = await self._whole_id(job_id)
        record = await control.adjust(self.engine, whole, actor=self._actor, **options)
        return await view_of(self.engine, record)

    async def retry(self, job_id: str, *, failed_items: bool = False, reason: str = "") -> JobView:
        """Run a failed job again, with a fresh budget of attempts.

        With `failed_items` it may also be dead or completed with errors, and `job.items.pending`
        gives its handler only the items that its attempts have not finished.
        """
        whole = await self._whole_id(job_id)
        run = control.retry_items if failed_items else control.retry
        return await view_of(self.engine, await run(self.engine, whole, self._by(reason)))

    async def replay(self, job_id: str, *, reason: str = "") -> JobView:
        """Run a dead letter again, with a fresh budget of attempts."""
        whole = await self._whole_id(job_id)
        return await view_of(
            self.engine, await control.replay(self.engine, whole, self._by(reason))
        )

    async def dismiss(self, job_id: str, *, reason: str = "") -> JobView:
        """Close a dead letter for good."""
        whole = await self._whole_id(job_id)
        return await view_of(
            self.engine, await control.dismiss(self.engine, whole, self._by(reason))
        )

    async def clone(self, job_id: str, *, reason: str = "") -> JobView:
        """Create a new job from this one's definition, linked to it."""
        whole = await self._whole_id(job_id)
        return await self.get(await control.clone(self.engine, whole, self._by(reason)))

    async def delete(self, job_id: str, *, reason: str = "") -> None:
        """Remove an ended job at once, with its journal and log."""
        record = await self._record(job_id)
        (removal,) = await self.engine.remove([record.definition.id], self._by(reason))
        if removal == "live":
            raise CommandRejected(
                f"Job {record.definition.id} is {record.head.state}. Cancel it before deleting it.",
                job_id=record.definition.id,
            )
        if removal == "needed":
            raise CommandRejected(
                f"A job that has not ended follows job {record.definition.id} and may need its "
                "result. Nothing was removed. Cancel that one first; see: trellis jobs graph "
                f"{record.definition.id}",
                job_id=record.definition.id,
            )
        if removal == "in_batch":
            raise CommandRejected(
                f"Job {record.definition.id} is a member of a batch that has not finished, or "
                "whose fan-in job may still read it (it waits, runs or is dead). Nothing was "
                "removed. Cancel the batch, or cancel or dismiss that job; see: trellis batches",
                job_id=record.definition.id,
            )

    # -- keys, queues, workers, locks ----------------------------------------------------------

    async def keys(self, *, service: str | None = None, type: str | None = None) -> list[KeyView]:  # noqa: A002 - the word used everywhere
        """Return every key that is held or waited for."""
        return await list_keys(self.engine, service, type)

    async def key(self, key: str) -> list[KeyView]:
        """Return one key, of each type whose jobs hold it or wait for it; raise `KeyNotFound`."""
        return await find_key(self.engine, key)

    async def release_key(
        self, held: str, then: Literal["retry", "fail"] = "retry", *, reason: str = ""
    ) -> JobView:
        """Free a key that a lost attempt still blocks; name the key, or the job that holds it."""
        job_id = await blocking_job(self.engine, held)
        return await view_of(
            self.engine, await control.release_key(self.engine, job_id, then, self._by(reason))
        )

    async def queues(self) -> list[QueueView]:
        """Return every queue that has jobs or settings."""
        return await list_queues(self.engine)

    async def pause(self, queue: str, *, reason: str = "") -> QueueView:
        """Start no more jobs of this queue; write it as service/queue.

        The queue alone is enough while only one service has it.
        """
        return await change_queue(self.engine, queue, self._by(reason), paused=True)

    async def resume(self, queue: str, *, reason: str = "") -> QueueView:
        """Start and accept jobs of this queue again."""
        by = self._by(reason)
        return await change_queue(self.engine, queue, by, paused=False, draining=False)

    async def drain_queue(self, queue: str, *, reason: str = "") -> QueueView:
        """Accept no new jobs in this queue; those that are there still run."""
        return await change_queue(self.engine, queue, self._by(reason), draining=True)

    async def set_aging(self, span: Duration | None, *, reason: str = "") -> None:
        """Let a waiting job count one priority higher for each such span since it was due.

        It is one setting of all queues, off by default; None turns it off. Who did it is recorded.
        """
        aging = None if span is None else checks.duration("span", span)
        await self.engine.set_aging(check_aging(aging), self._by(reason))

    async def aging(self) -> timedelta | None:
        """Return that span; None: waiting jobs do not age."""
        found = await self.engine.aging()
        return None if found is None else timedelta(microseconds=found)

    async def drain_all(self, reason: str = "") -> DrainView:
        """Accept no new job in any queue; workers go on with the jobs that are there.

        Creating a job raises `Draining`, also in handlers; a request that is already known still
        gets its answer. Who did it, when and why is recorded.
        """
        return await change_drain(self.engine, Drain(on=True, actor=self._actor, reason=reason))

    async def accept_all(self, reason: str = "") -> DrainView:
        """Accept new jobs again; queues that drain or are paused by themselves stay so."""
        return await change_drain(self.engine, Drain(on=False, actor=self._actor, reason=reason))

    async def drain_history(self, limit: int = 20) -> list[DrainView]:
        """Return the changes made by `drain_all` and `accept_all`, the latest first."""
        return await drain_history(self.engine, limit)

    async def workers(self, *, ended: bool = False) -> list[WorkerView]:
        """Return the worker processes, the newest first; ended ones only with `ended`.

        One that was lost stays listed as offline for a day.
        """
        now = await self.engine.now()
        found = [worker_view(each, now) for each in await self.engine.sessions() if each.is_worker]
        return [each for each in found if ended or each.state != "ended"]

    async def drain(self, worker: str, *, reason: str = "") -> WorkerView:
        """Ask a worker process to finish its jobs and exit; name it, or the start of its id."""
        session = await resolve_worker(self.engine, worker)
        await self.engine.ask_drain(session.id, self._by(reason))
        return worker_view(session._replace(draining=True), await self.engine.now())

    async def locks(self) -> list[LockView]:
        """Return the locks that are held."""
        return [lock_view(each) for each in await self.engine.locks()]

    async def audit(
        self, *, after: int | None = None, limit: int = 50, **filters: Unpack[AuditFilters]
    ) -> list[AuditView]:
        """Return what operators changed, the latest first.

        `after` is the number of the last entry of the page before. Entries are kept for a year,
        or as long as the setting `keep_audit` says.
        """
        return await list_audit(self.engine, filters, after, limit)

    async def health(self) -> Health:
        """Return what the engine is, how durable it is, and what is wrong with it."""
        return await self.engine.health()

    def _by(self, reason: str) -> By:
        return By(self._actor, reason)

    async def _record(self, job_id: str) -> JobRecord:
        return await resolve_job(self.engine, job_id)

    async def _whole_id(self, job_id: str) -> JobId:
        return (await self._record(job_id)).definition.id

    # -- for code without an event loop -----------------------------------------------------------

    pick_sync = synced(pick)
    count_sync = synced(count)
    get_sync = synced(get)
    why_sync = synced(why)
    links_sync = synced(links)
    graph_sync = synced(graph)
    journal_sync = synced(journal)
    outcomes_sync = synced(outcomes)
    attempts_sync = synced(attempts)
    progress_sync = synced(progress)
    items_sync = synced(items)
    logs_sync = iterated(logs)
    changes_sync = iterated(changes)
    wait_sync = synced(wait)
    cancel_sync = synced(cancel)
    adjust_sync = synced(adjust)
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
    set_aging_sync = synced(set_aging)
    aging_sync = synced(aging)
    drain_all_sync = synced(drain_all)
    accept_all_sync = synced(accept_all)
    drain_history_sync = synced(drain_history)
    workers_sync = synced(workers)
    drain_sync = synced(drain)
    locks_sync = synced(locks)
    audit_sync = synced(audit)
    health_sync = synced(health)
