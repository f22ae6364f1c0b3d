"""The memory engine of a sandbox: goes by the manual clock alone and notes how attempts failed.

A worker estimates the engine's time and runs ahead of a clock that stands still. So every decision
is made again here, at exactly the moment the clock shows: a retry "in 5s" is due when a test has
advanced the clock by five seconds, not a millisecond later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from trellis.core.commands import Command, Complete, Crash, Fail, LoseLease, Release, Snooze
from trellis.core.durations import Instant
from trellis.core.job import Definition, Failure, JobRecord, SessionId
from trellis.core.lifecycle import Transition, decide
from trellis.core.states import WAITING, State
from trellis.engines.memory import MemoryEngine
from trellis.engines.memory.store import Entry, Lane
from trellis.engines.values import Claimed, CommitResult, Committed, Demand, Outcome
from trellis.testing.clock import ManualClock


class FailedAttempt(NamedTuple):
    """One attempt that did not end well."""

    definition: Definition
    attempt: int
    error: Failure
    #: Where the job stands after it.
    state: State


class SandboxEngine(MemoryEngine):
    """Jobs in dictionaries, in the hands of a test."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        #: How many jobs were handed out to workers.
        self.claimed = 0
        self.failed: list[FailedAttempt] = []
        self._listeners: list[Callable[[], object]] = []

    # -- what passes through -------------------------------------------------------------------

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Take due jobs; tell whoever listens when there were none."""
        claimed = await super().claim(session, demands, limit)
        self.claimed += len(claimed.jobs)
        if not claimed.jobs:
            for listener in tuple(self._listeners):
                listener()
        return claimed

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        """Store decisions as they are at this very moment of the clock."""
        now = self._clock.now()
        exact = [_decided_at(transition, now) for transition in transitions]
        results = await super().commit(exact)
        for transition, result in zip(exact, results, strict=True):
            if isinstance(result, Committed):
                self._note_failure(transition)
        return results

    def _note_failure(self, transition: Transition) -> None:
        after, before = transition.head, transition.before
        if not isinstance(transition.command, Fail | LoseLease | Crash) or after.error is None:
            return
        if after.state is not State.CANCELLED:
            failed = FailedAttempt(transition.definition, before.attempt, after.error, after.state)
            self.failed.append(failed)

    @contextmanager
    def telling(self, listener: Callable[[], object]) -> Iterator[None]:
        """Call this, from whatever thread, whenever a worker has asked for work in vain."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def end(self) -> None:
        """End every watch."""
        self._hints.close()

    # -- what a test asks ----------------------------------------------------------------------

    def jobs(self) -> list[tuple[JobRecord, Outcome | None]]:
        """Return every job in creation order, and how it ended if it has."""
        with self._lock:
            entries = [entry for _, entry in sorted(self._store.entries.items())]
            return [(entry.record, _outcome(entry)) for entry in entries]

    def live_jobs(self) -> list[JobRecord]:
        """Return the jobs that wait or run, in creation order."""
        return [record for record, _ in self.jobs() if record.head.finished_at is None]

    def due_jobs(self) -> list[JobRecord]:
        """Return the jobs that wait although their time has come."""
        now = self._clock.now()
        return [record for record in self.live_jobs() if _is_due(record, now)]

    def next_moment(self) -> Instant | None:
        """Return when the clock alone will next make a waiting job due, or end it."""
        now = self._clock.now()
        waiting = [record for record in self.live_jobs() if record.head.state in WAITING]
        moments = [record.head.run_at for record in waiting]
        moments += [record.definition.deadline_at or 0 for record in waiting]
        return min((moment for moment in moments if moment > now), default=None)

    def is_quiet(self, lanes: AbstractSet[Lane]) -> bool:
        """Tell whether nothing runs and nothing of these lanes can be claimed."""
        with self._lock:
            now = self._clock.now()
            entries = self._store.entries.values()
            return not any(self._is_in_motion(entry, lanes, now) for entry in entries)

    def _is_in_motion(self, entry: Entry, lanes: AbstractSet[Lane], now: Instant) -> bool:
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
    """Return the command of an attempt that began when the clock says it did."""
    match command:
        case Complete():
            return command._replace(started_at=_earlier(command.started_at, now))
        case Fail() | Snooze() | Release():
            return replace(command, started_at=_earlier(command.started_at, now))
        case _:
            return command


def _earlier(moment: Instant | None, now: Instant) -> Instant | None:
    return None if moment is None else min(moment, now)


def _is_due(record: JobRecord, now: Instant) -> bool:
    return record.head.state in WAITING and record.head.run_at <= now


def _outcome(entry: Entry) -> Outcome | None:
    ended = entry.head.finished_at is not None
    return entry.outcomes[-1] if ended and entry.outcomes else None
