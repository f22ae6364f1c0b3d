"""A selection of jobs: read them, count them, or apply one verb to all of them.

A bulk verb goes through everything that matches, batch by batch, not just one page. Each job is
decided on its own, as a single command would be, and the effect is counted; a refusal stops
nothing. For a verb, a filter that names no state means the states in which the lifecycle allows it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, NamedTuple, Protocol, Unpack

from trellis import control
from trellis.core.commands import Cancel, Command, Dismiss, Replay, Retry, RetryItems
from trellis.core.durations import Instant, to_datetime
from trellis.core.job import JobId, JobRecord
from trellis.core.lifecycle import RULES, Refused, Stale
from trellis.core.states import ENDED, LIVE, State
from trellis.engines.audit import By
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter, KeyRefused, Page, Removal
from trellis.errors import AdmissionError, JobError, JobNotFound, KeyBusy
from trellis.insight.attempts import job_views
from trellis.insight.views import JobView
from trellis.portal import iterated, synced

_BATCH: Final = 200
_KEPT_REFUSALS: Final = 20

Verb = Literal[
    "cancel", "move", "set", "retry", "retry items", "replay", "dismiss", "clone", "delete"
]
#: Called with the number of jobs processed so far.
Progress = Callable[[int], None]
_Effect = Literal["done", "refused", "missing"]


def no_progress(_done: int) -> None:
    """Report nothing."""


# -- which jobs --------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Some jobs as they were at this moment; None for an id without a job."""

    now: Instant
    jobs: tuple[tuple[JobId, JobRecord | None], ...]


class JobSet(Protocol):
    """The jobs of a selection: those that match a filter, or a list of ids."""

    def batches(self, engine: Engine) -> AsyncIterator[Batch]:
        """Yield all of them."""

    async def count(self, engine: Engine) -> int:
        """Return how many there are."""

    def among(self, states: frozenset[State]) -> JobSet:
        """Return those in one of these states, unless the filter names states itself."""

    def with_items(self) -> JobSet:
        """Return those that have reported items."""


class MatchingJobs:
    """Everything that matches a filter, newest first; jobs created later are not included."""

    def __init__(self, filter_at: Callable[[Instant], JobFilter]) -> None:
        self._filter_at = filter_at
        self._where: JobFilter | None = None

    async def where(self, engine: Engine) -> JobFilter:
        """Return the filter; moments such as "an hour ago" are computed once."""
        if self._where is None:
            self._where = self._filter_at(await engine.now())
        return self._where

    async def page(self, engine: Engine, after: int | None, limit: int) -> Page:
        """Return a page."""
        return await engine.find(await self.where(engine), after=after, limit=limit)

    async def batches(self, engine: Engine) -> AsyncIterator[Batch]:
        """Yield all of them."""
        after: int | None = None
        while True:
            page = await self.page(engine, after, _BATCH)
            yield Batch(page.as_of, tuple((job.definition.id, job) for job in page.jobs))
            after = page.next_after
            if after is None:
                return

    async def count(self, engine: Engine) -> int:
        """Return how many match."""
        return (await engine.count(await self.where(engine))).total

    def among(self, states: frozenset[State]) -> MatchingJobs:
        """Return those in one of these states, unless the filter names states itself."""

        def narrowed(now: Instant) -> JobFilter:
            where = self._where or self._filter_at(now)
            return where if where.states else where._replace(states=tuple(sorted(states)))

        return MatchingJobs(narrowed)

    def with_items(self) -> JobsWithItems:
        """Return those that have reported items."""
        return JobsWithItems(self)


class JobsWithItems:
    """Those of the matching jobs that have reported items."""

    def __init__(self, jobs: MatchingJobs) -> None:
        self._jobs = jobs

    async def batches(self, engine: Engine) -> AsyncIterator[Batch]:
        """Yield all of them."""
        async for now, jobs in self._jobs.batches(engine):
            yield Batch(now, tuple([each for each in jobs if await engine.items(each[0])]))

    async def count(self, engine: Engine) -> int:
        """Return how many there are; each job is asked for its items."""
        return sum([len(batch.jobs) async for batch in self.batches(engine)])

    def among(self, states: frozenset[State]) -> JobsWithItems:
        """Return those in one of these states, unless the filter names states itself."""
        return JobsWithItems(self._jobs.among(states))

    def with_items(self) -> JobsWithItems:
        """Return all."""
        return self


class ListedJobs:
    """Jobs by their ids, in the order given."""

    def __init__(self, ids: Sequence[JobId]) -> None:
        self._ids = tuple(dict.fromkeys(ids))

    async def batches(self, engine: Engine) -> AsyncIterator[Batch]:
        """Yield all of them."""
        for start in range(0, len(self._ids), _BATCH):
            ids = self._ids[start : start + _BATCH]
            loaded = await engine.load(ids)
            yield Batch(loaded.now, tuple(zip(ids, loaded.records, strict=True)))

    async def count(self, engine: Engine) -> int:  # noqa: ARG002 - as in every set
        """Return how many ids were given."""
        return len(self._ids)

    def among(self, states: frozenset[State]) -> ListedJobs:  # noqa: ARG002 - as in every set
        """Return all: for a job that is named, a refusal is reported."""
        return self

    def with_items(self) -> ListedJobs:
        """Return all: for a job that is named, a refusal is reported."""
        return self


# -- one verb for many jobs --------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """What a bulk action did, counted by job."""

    done: int = 0
    #: Of those: running ones that a cancel has asked to stop.
    asked: int = 0
    #: Their state or policy does not allow it.
    refused: int = 0
    #: Never created, or removed in between.
    missing: int = 0
    #: The first refusals: id and reason.
    refusals: list[tuple[str, str]] = field(default_factory=list)
    #: The ids of the jobs it was done to; for a clone, of the new jobs.
    ids: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How many jobs were processed."""
        return self.done + self.refused + self.missing

    def add(self, job_id: str, effect: _Effect, reason: str = "") -> None:
        """Count one job."""
        match effect:
            case "done":
                self.done += 1
                self.ids.append(job_id)
            case "missing":
                self.missing += 1
            case "refused":
                self.refused += 1
                if len(self.refusals) < _KEPT_REFUSALS:
                    self.refusals.append((job_id, reason))


async def _apply_to(engine: Engine, jobs: JobSet, command: Command, progress: Progress) -> Tally:
    tally = Tally()
    async for now, batch in jobs.batches(engine):
        asked = [(record, command) for _, record in batch if record is not None]
        results = iter(await control.apply_all(engine, asked, now))
        for job_id, record in batch:
            result = control.Missing() if record is None else next(results)
            effect = _effect(command, job_id, result)
            tally.add(job_id, *effect)
            is_cancel = isinstance(command, Cancel)
            tally.asked += is_cancel and effect[0] == "done" and _is_running(result)
        progress(tally.total)
    return tally


def _is_running(result: control.Result) -> bool:
    """Return whether the job goes on after what was done: a cancel asks a running job."""
    match result:
        case control.Applied(record, _):
            return record.head.state is State.ACTIVE
        case Refused(head, _):
            return head.state is State.ACTIVE
        case _:
            return False


def _effect(command: Command, job_id: JobId, result: control.Result) -> tuple[_Effect, str]:
    match result:
        case control.Applied():
            return "done", ""
        case control.Missing():
            return "missing", ""
        case Refused(head, reason):
            if control.is_in_effect(command, head):
                return "done", ""
            advice = control.advice(command, head.state, job_id)
            return "refused", f"{reason} {advice}".rstrip()
        case KeyRefused(reason, existing):
            return "refused", f"Its key is taken ({reason}): job {existing} has it."
        case control.Contended():
            return "refused", "It kept changing; try again."
        case Stale(head):
            return "refused", f"It is {head.state}."


async def _retry_items_of_each(engine: Engine, jobs: JobSet, by: By, progress: Progress) -> Tally:
    tally = Tally()
    async for _, batch in jobs.batches(engine):
        for job_id, _ in batch:
            try:
                await control.retry_items(engine, job_id, by)
                tally.add(job_id, "done")
            except JobNotFound:
                tally.add(job_id, "missing")
            except (JobError, KeyBusy) as error:
                tally.add(job_id, "refused", str(error))
        progress(tally.total)
    return tally


async def _clone_each(engine: Engine, jobs: JobSet, by: By, progress: Progress) -> Tally:
    tally = Tally()
    async for _, batch in jobs.batches(engine):
        for job_id, _ in batch:
            try:
                tally.add(await control.clone(engine, job_id, by), "done")
            except JobNotFound:
                tally.add(job_id, "missing")
            except AdmissionError as error:
                tally.add(job_id, "refused", str(error))
        progress(tally.total)
    return tally


_REMOVED: Final[dict[Removal, tuple[_Effect, str]]] = {
    "removed": ("done", ""),
    "live": ("refused", "It has not ended; cancel it first."),
    "needed": ("refused", "A job that has not ended follows it; cancel that one first."),
    "in_batch": ("refused", "Its batch has not finished, or the fan-in job may still read it."),
    "missing": ("missing", ""),
}


async def _remove_each(engine: Engine, jobs: JobSet, by: By, progress: Progress) -> Tally:
    tally = Tally()
    async for _, batch in jobs.batches(engine):
        ids = [job_id for job_id, _ in batch]
        for job_id, removal in zip(ids, await engine.remove(ids, by), strict=True):
            tally.add(job_id, *_REMOVED[removal])
        progress(tally.total)
    return tally


# -- selections --------------------------------------------------------------------------------


def _states_of(command: type[Command]) -> frozenset[State]:
    return frozenset(state for rule in RULES if rule.command is command for state in rule.sources)


#: In which states the lifecycle allows a verb.
ALLOWED: Final[dict[Verb, frozenset[State]]] = {
    "cancel": _states_of(Cancel),
    "move": LIVE,
    "set": LIVE,
    "retry": _states_of(Retry),
    "retry items": _states_of(RetryItems),
    "replay": _states_of(Replay),
    "dismiss": _states_of(Dismiss),
    "clone": frozenset(State),
    "delete": ENDED,
}


class Selection:
    """Jobs to read with `async for`, or to apply a verb to."""

    def __init__(self, engine: Callable[[], Engine], jobs: JobSet, actor: str) -> None:
        self._engine = engine
        self._jobs = jobs
        self._actor = actor

    async def __aiter__(self) -> AsyncIterator[JobView]:
        async for batch in self._jobs.batches(self._engine()):
            records = [record for _, record in batch.jobs if record is not None]
            for view in await job_views(self._engine(), records):
                yield view

    async def count(self) -> int:
        """Return how many there are."""
        return await self._jobs.count(self._engine())

    def meant_for(self, verb: Verb) -> Selection:
        """Return those that this verb would be applied to."""
        return Selection(self._engine, self._meant_for(verb), self._actor)

    def _meant_for(self, verb: Verb) -> JobSet:
        jobs = self._jobs.among(ALLOWED[verb])
        return jobs.with_items() if verb == "retry items" else jobs

    async def cancel(
        self, reason: str = "", *, force: bool = False, progress: Progress = no_progress
    ) -> Tally:
        """Stop them: waiting ones at once, running ones by asking, or at once with `force`."""
        return await self._apply("cancel", Cancel(reason, force, self._actor), progress)

    async def adjust(
        self, *, progress: Progress = no_progress, **options: Unpack[control.AdjustOptions]
    ) -> Tally:
        """Move live ones to another queue, or change their priority, due time or attempts.

        The due time of running ones cannot change.
        """
        command = control.adjustment(self._actor, **options)
        return await self._apply("set" if command.queue is None else "move", command, progress)

    async def retry(
        self, *, failed_items: bool = False, reason: str = "", progress: Progress = no_progress
    ) -> Tally:
        """Run failed ones again, with a fresh budget of attempts.

        With `failed_items`, also dead ones and those that completed with errors, each only for
        the items that its attempts have not finished; jobs without items are left out, unless
        they are named by id.
        """
        if failed_items:
            jobs = self._meant_for("retry items")
            return await _retry_items_of_each(self._engine(), jobs, self._by(reason), progress)
        return await self._apply("retry", Retry(self._actor, reason), progress)

    async def replay(self, *, reason: str = "", progress: Progress = no_progress) -> Tally:
        """Run dead letters again, with a fresh budget of attempts."""
        return await self._apply("replay", Replay(self._actor, reason), progress)

    async def dismiss(self, *, reason: str = "", progress: Progress = no_progress) -> Tally:
        """Close dead letters for good."""
        return await self._apply("dismiss", Dismiss(self._actor, reason), progress)

    async def clone(self, *, reason: str = "", progress: Progress = no_progress) -> Tally:
        """Create a new job from each one's definition."""
        return await _clone_each(self._engine(), self._jobs, self._by(reason), progress)

    async def delete(self, *, reason: str = "", progress: Progress = no_progress) -> Tally:
        """Remove ended ones at once, with their journals and logs."""
        jobs = self._meant_for("delete")
        return await _remove_each(self._engine(), jobs, self._by(reason), progress)

    def _by(self, reason: str) -> By:
        return By(self._actor, reason)

    async def _apply(self, verb: Verb, command: Command, progress: Progress) -> Tally:
        return await _apply_to(self._engine(), self._meant_for(verb), command, progress)

    # -- for code without an event loop --------------------------------------------------------

    __iter__ = iterated(__aiter__)
    count_sync = synced(count)
    cancel_sync = synced(cancel)
    adjust_sync = synced(adjust)
    retry_sync = synced(retry)
    replay_sync = synced(replay)
    dismiss_sync = synced(dismiss)
    clone_sync = synced(clone)
    delete_sync = synced(delete)


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of jobs, newest first; ask for the next one with `after=page.next_after`."""

    #: The engine's time.
    as_of: datetime
    jobs: tuple[JobView, ...]
    next_after: int | None


class Found(Selection):
    """What matches a filter, newest first."""

    def __init__(self, engine: Callable[[], Engine], jobs: MatchingJobs, actor: str) -> None:
        super().__init__(engine, jobs, actor)
        self._matching = jobs

    async def page(self, *, after: int | None = None, limit: int = 50, offset: int = 0) -> JobPage:
        """Return one page; `offset` leaves out as many first, which costs reading them."""
        engine = self._engine()
        while offset > 0:
            skipped = await self._matching.page(engine, after, min(offset, _BATCH))
            offset, after = offset - len(skipped.jobs), skipped.next_after
            if after is None:
                return JobPage(to_datetime(skipped.as_of), (), None)
        page = await self._matching.page(engine, after, limit)
        views = await job_views(engine, page.jobs)
        return JobPage(to_datetime(page.as_of), tuple(views), page.next_after)

    page_sync = synced(page)
