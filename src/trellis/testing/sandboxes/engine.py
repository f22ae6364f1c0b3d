"""The memory engine of a sandbox: uses only the manual clock and records failed attempts.

A job that is created in a transaction of the caller is held until its commit.

A worker estimates the engine's time, and its estimate is ahead of a clock that does not move. So
every decision is made again here, at exactly the time of the clock: a retry "in 5s" is due when a
test has advanced the clock by five seconds, not a millisecond later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from trellis import control
from trellis.core import commands
from trellis.core.commands import Command
from trellis.core.durations import Instant
from trellis.core.job import Definition, Failure, JobId, JobRecord, NewJob, SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.core.schedules import Declared, declare
from trellis.core.states import WAITING, State
from trellis.engines.demand import Demand
from trellis.engines.memory import MemoryEngine
from trellis.engines.memory.store import Entry, Lane
from trellis.engines.values import (
    Accepted,
    Claimed,
    CommitResult,
    Committed,
    Counts,
    CreateResult,
    GroupBy,
    JobFilter,
    Loaded,
    Outcome,
    Page,
    Replaced,
)
from trellis.testing.clock import ManualClock
from trellis.testing.sandboxes.transactions import Transactions, Watch

_FAILURES: Final = (commands.Fail, commands.LoseLease, commands.Crash)


class FailedAttempt(NamedTuple):
    """One failed attempt."""

    definition: Definition
    attempt: int
    error: Failure
    #: The state of the job after it.
    state: State


class SandboxEngine(MemoryEngine):
    """A memory engine that a test can inspect."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        #: How many jobs workers have claimed.
        self.claimed = 0
        self.failed: list[FailedAttempt] = []
        self._listeners: list[Callable[[], object]] = []
        self._transactions = Transactions(self._settle)

    def declare(self, declared: Iterable[Declared]) -> None:
        """Store schedules, as a worker does when it starts."""
        for each in declared:
            self._add_schedule(declare(each, self._clock.now()))

    # -- transactions of the caller ------------------------------------------------------------

    def create_within(
        self, connection: object, jobs: Sequence[NewJob]
    ) -> list[CreateResult] | Awaitable[list[CreateResult]]:
        """Create jobs that are visible after the caller's commit and gone after its rollback."""
        watch = self._transactions.find(connection)
        if watch is None:
            return self._create_now(jobs)
        begun = watch.begin()
        if begun is None:
            return self._create_held(watch, jobs)
        return self._create_after(begun, watch, jobs)

    async def _create_after(
        self, begun: Awaitable[object], watch: Watch, jobs: Sequence[NewJob]
    ) -> list[CreateResult]:
        await begun
        return self._create_held(watch, jobs)

    def _create_held(self, watch: Watch, jobs: Sequence[NewJob]) -> list[CreateResult]:
        with self._lock:
            self._transactions.look()
            results = self._create_now(jobs)
            ids = [each.job_id for each in results if isinstance(each, Accepted | Replaced)]
            for job_id in ids:
                entry = self._store.by_id(job_id)
                if entry is not None:
                    entry.is_held = True
                    self._store.feed.withhold(entry)
            watch.hold(ids)
        return results

    def _settle(self, ids: Sequence[JobId], committed: bool) -> None:  # noqa: FBT001 - a callback
        """Show the jobs of a transaction that was committed; remove those of one that was not."""
        with self._lock:
            for entry in filter(None, map(self._store.by_id, ids)):
                if not committed:
                    self._undo(entry)
                    continue
                entry.is_held = False
                self._store.feed.update(entry)
        self._hints.publish(("ready",))

    def _undo(self, entry: Entry) -> None:
        """Remove a job as if it had never been created."""
        cancel = decide(entry.record, commands.Cancel(), self._clock.now())
        if isinstance(cancel, Transition):
            self._put(entry, cancel)  # frees its slot and its dedupe key; nothing follows
        self._store.drop(entry)
        del self._store.removed[entry.definition.id]

    async def load(self, ids: Sequence[JobId]) -> Loaded:
        """Return these jobs, as they are after what the caller's transactions did."""
        self._transactions.look()
        return await super().load(ids)

    async def find(self, where: JobFilter, *, after: int | None = None, limit: int = 50) -> Page:
        """Return a page of matching jobs."""
        self._transactions.look()
        return await super().find(where, after=after, limit=limit)

    async def count(self, where: JobFilter, *group_by: GroupBy) -> Counts:
        """Count matching jobs."""
        self._transactions.look()
        return await super().count(where, *group_by)

    # -- calls of the worker -------------------------------------------------------------------

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Claim due jobs; call the listeners if there were none."""
        self._transactions.look()
        claimed = await super().claim(session, demands, limit)
        self.claimed += len(claimed.jobs)
        if not claimed.jobs:
            for listener in tuple(self._listeners):
                listener()
        return claimed

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        """Store each decision as it is at the present time of the clock."""
        now = self._clock.now()
        exact = [_decided_at(transition, now) for transition in transitions]
        results = await super().commit(exact)
        for transition, result in zip(exact, results, strict=True):
            if isinstance(result, Committed):
                self._note_failure(transition)
        # At once, because maintenance would do it by a clock that the test does not move.
        await control.cancel_stopped_members(self)
        return results

    def _note_failure(self, transition: Transition) -> None:
        after, before = transition.head, transition.before
        if not isinstance(transition.command, _FAILURES) or after.error is None:
            return
        if after.state is not State.CANCELLED:
            failed = FailedAttempt(transition.definition, before.attempt, after.error, after.state)
            self.failed.append(failed)

    @contextmanager
    def on_empty_claim(self, listener: Callable[[], object]) -> Iterator[None]:
        """Call this, from any thread, whenever a worker has claimed no job."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def end(self) -> None:
        """End every watch."""
        self._hints.close()
        self._transactions.close()

    # -- reads of a test -----------------------------------------------------------------------

    def jobs(self) -> list[tuple[JobRecord, Outcome | None]]:
        """Return every job in creation order, with its outcome if it has ended."""
        with self._lock:
            self._transactions.look()
            entries = [entry for _, entry in sorted(self._store.entries.items())]
            return [(entry.record, _outcome(entry)) for entry in entries if not entry.is_held]

    def live_jobs(self) -> list[JobRecord]:
        """Return the jobs that wait or run, in creation order."""
        return [record for record, _ in self.jobs() if record.head.finished_at is None]

    def due_jobs(self) -> list[JobRecord]:
        """Return the waiting jobs whose `run_at` has come."""
        now = self._clock.now()
        unresolved = {row for row, each in self._store.entries.items() if each.is_unresolved}
        return [
            record
            for record in self.live_jobs()
            if _is_due(record, now) and record.definition.row not in unresolved
        ]

    def next_instant(self) -> Instant | None:
        """Return the next `run_at` or deadline of a waiting job, if there is one."""
        now = self._clock.now()
        waiting = [record for record in self.live_jobs() if record.head.state in WAITING]
        instants = [record.head.run_at for record in waiting]
        instants += [record.definition.deadline_at or 0 for record in waiting]
        return min((each for each in instants if each > now), default=None)

    def is_quiet(self, lanes: AbstractSet[Lane]) -> bool:
        """Return whether no job runs and no job of these lanes can be claimed."""
        with self._lock:
            now = self._clock.now()
            self._transactions.look()
            entries = tuple(self._store.entries.values())
            return not any(
                self._is_busy(entry, lanes, now) for entry in entries if not entry.is_held
            )

    def _is_busy(self, entry: Entry, lanes: AbstractSet[Lane], now: Instant) -> bool:
        definition, head = entry.record
        if head.state is State.ACTIVE:
            return (
                head.fence is not None
                and not head.blocked
                and not self._store.is_over(head.fence[0])
            )
        if (
            entry.lane not in lanes
            or self._store.queue(definition.service, definition.queue).paused
        ):
            return False
        if definition.deadline_at is not None and definition.deadline_at <= now:
            return False
        if entry.availability == "scheduled":
            return head.run_at <= now
        return entry.availability == "ready"


def _decided_at(transition: Transition, now: Instant) -> Transition:
    record = JobRecord(transition.definition, transition.before)
    decision = decide(record, _not_later(transition.command, now), now)
    return decision if isinstance(decision, Transition) else transition


def _not_later(command: Command, now: Instant) -> Command:
    """Return the command with a `started_at` that is not after the time of the clock."""
    match command:
        case commands.Complete():
            return command._replace(started_at=_earlier(command.started_at, now))
        case commands.Fail() | commands.Snooze() | commands.Release():
            return replace(command, started_at=_earlier(command.started_at, now))
        case _:
            return command


def _earlier(instant: Instant | None, now: Instant) -> Instant | None:
    return None if instant is None else min(instant, now)


def _is_due(record: JobRecord, now: Instant) -> bool:
    return record.head.state in WAITING and record.head.run_at <= now


def _outcome(entry: Entry) -> Outcome | None:
    ended = entry.head.finished_at is not None
    return entry.outcomes[-1] if ended and entry.outcomes else None
