"""Batches of the memory engine: verbs, and what the end of a member does to its batches."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from trellis.core.batches import (
    Batch,
    NewBatch,
    finish,
    is_success,
    keeps_members,
    stops_the_rest,
)
from trellis.core.durations import Instant
from trellis.core.job import NewJob
from trellis.core.lifecycle import Transition
from trellis.core.states import ENDED, State
from trellis.engines.audit import By, cancel_of, seal_of
from trellis.engines.batches import BatchFilter, BatchStatus, Member
from trellis.engines.clock import Clock
from trellis.engines.memory.store import Entry, Store
from trellis.engines.values import Accepted, Coalesced, CreateResult, Replaced


@dataclass(slots=True)
class Membership:
    """One member: how it finished, and whether an existing job stands for a new one."""

    linked: bool
    finished_as: State | None = None


@dataclass(slots=True, eq=False)
class BatchEntry:
    """One batch with its members by row, and the batches in it."""

    batch: Batch
    members: dict[int, Membership] = field(default_factory=dict)
    #: The rows of members that have not finished.
    waiting: set[int] = field(default_factory=set)
    inner: list[BatchEntry] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether it is sealed, has not finished and waits for nothing more."""
        batch = self.batch
        if batch.sealed_at is None or batch.finished_at is not None:
            return False
        if any(each.batch.finished_at is None for each in self.inner):
            return False
        is_cancelled = batch.cancelled_at is not None
        return all(self.members[row].linked and is_cancelled for row in self.waiting)

    @property
    def has_succeeded(self) -> bool:
        """Whether all members that have finished, and all batches in it, succeeded."""
        ends = (each.finished_as for each in self.members.values())
        return all(is_success(end) for end in ends if end is not None) and all(
            each.batch.succeeded for each in self.inner
        )

    @property
    def below(self) -> list[BatchEntry]:
        """The batch and all batches in it."""
        return [self, *(deeper for each in self.inner for deeper in each.below)]


class BatchVerbs:
    """The part of the memory engine that groups jobs."""

    _clock: Clock
    _lock: threading.RLock
    _store: Store
    _batches: dict[str, BatchEntry]

    def _create_following(self, jobs: Sequence[NewJob]) -> None:
        raise NotImplementedError

    # -- verbs ---------------------------------------------------------------------------------

    async def open_batch(self, new: NewBatch) -> Batch | None:
        """Open a batch."""
        with self._lock:
            if new.parent is not None and new.id not in self._batches:
                outer = self._batches.get(new.parent)
                if outer is None or outer.batch.admits != "members":
                    return None
            if new.id not in self._batches:
                last = next(reversed(self._batches.values()), None)
                row = 1 if last is None else last.batch.row + 1
                entry = BatchEntry(Batch(new, row, self._clock.now()))
                self._batches[new.id] = entry
                if new.parent is not None:
                    self._batches[new.parent].inner.append(entry)
            return self._batches[new.id].batch

    async def seal_batch(self, batch_id: str, by: By | None = None) -> Batch | None:
        """Let a batch finish once its members have."""
        with self._lock:
            entry = self._batches.get(batch_id)
            if entry is None:
                return None
            if entry.batch.sealed_at is None and entry.batch.finished_at is None:
                entry.batch = entry.batch._replace(sealed_at=self._clock.now())
                if by is not None:
                    self._store.record(seal_of(batch_id), by)
                self._finish([entry])
            return entry.batch

    async def cancel_batch(self, batch_id: str, by: By) -> Batch | None:
        """Take no more members, and have the unfinished ones cancelled."""
        with self._lock:
            entry = self._batches.get(batch_id)
            if entry is None or entry.batch.admits == "nothing":
                return None if entry is None else entry.batch
            before, now = entry.batch.state, self._clock.now()
            for each in (below := entry.below):
                batch = each.batch
                if batch.finished_at is None:
                    each.batch = batch._replace(
                        cancelled_at=batch.cancelled_at or now,
                        sealed_at=batch.sealed_at or now,
                        stopping_at=batch.stopping_at or now,
                    )
            self._store.record(cancel_of(batch_id, before), by)
            self._finish(below)
            return entry.batch

    async def finish_batches(self, limit: int) -> int:
        """Finish batches that are complete and were left behind."""
        with self._lock:
            left = (each for each in self._batches.values() if each.is_complete)
            found = list(islice(left, limit))
            self._finish(found)
            return len(found)

    async def batch(self, batch_id: str) -> Batch | None:
        """Return a batch."""
        with self._lock:
            entry = self._batches.get(batch_id)
            return None if entry is None else entry.batch

    async def batch_statuses(self, batch_ids: Sequence[str]) -> list[BatchStatus | None]:
        """Return these batches with the number of their members in each state."""
        with self._lock:
            entries = map(self._batches.get, batch_ids)
            return [None if entry is None else self._status(entry) for entry in entries]

    def _status(self, entry: BatchEntry) -> BatchStatus:
        states = Counter(self._store.entries[row].head.state for row in entry.members)
        counts = dict(sorted(states.items(), key=lambda each: each[0].value))
        finished = len(entry.members) - len(entry.waiting)
        return BatchStatus(entry.batch, counts, finished, tuple(e.batch for e in entry.inner))

    async def batches(
        self, where: BatchFilter, *, after: int | None = None, limit: int = 50
    ) -> list[Batch]:
        """Return a page of batches, the newest first."""
        with self._lock:
            found = (
                entry.batch
                for entry in reversed(self._batches.values())
                if (after is None or entry.batch.row < after) and _matches(where, entry.batch)
            )
            return list(islice(found, limit))

    async def members(self, batch_id: str, after: int = 0, limit: int = 500) -> list[Member]:
        """Return members of a batch."""
        with self._lock:
            entry = self._batches.get(batch_id)
            rows = [] if entry is None else sorted(row for row in entry.members if row > after)
            return [_member(self._store.entries[row]) for row in rows[:limit]]

    # -- joining -------------------------------------------------------------------------------

    def _join(self, new: NewJob, result: CreateResult) -> None:
        """Make a created job a member of its batch, or the one that stands for it."""
        entry = self._batches.get((new.relations and new.relations.batch) or "")
        if entry is None:
            return
        if isinstance(result, Accepted | Replaced):
            self._add(entry, self._store.rows[new.id], Membership(linked=False))
        elif isinstance(result, Coalesced):
            row = self._store.rows[result.existing]
            state = self._store.entries[row].head.state
            ended = state if state in ENDED else None
            self._add(entry, row, Membership(linked=True, finished_as=ended))

    def _add(self, entry: BatchEntry, row: int, member: Membership) -> None:
        if row not in entry.members:
            entry.members[row] = member
            self._store.entries[row].batches.add(entry.batch.new.id)
            if member.finished_as is None:
                entry.waiting.add(row)

    # -- finishing -----------------------------------------------------------------------------

    def _finish_members(self, ended: Iterable[Transition]) -> None:
        """Record that jobs have ended in every batch that waits for them."""
        touched: dict[int, BatchEntry] = {}
        stopping: list[BatchEntry] = []
        for transition in ended:
            row, state = transition.definition.row, transition.head.state
            for entry in self._batches_of(self._store.entries[row]):
                if row in entry.waiting:
                    entry.waiting.remove(row)
                    entry.members[row].finished_as = state
                    touched[entry.batch.row] = entry
                    if stops_the_rest(entry.batch, state):
                        stopping.append(entry)
        for entry in stopping:
            self._stop(entry)
        self._finish(touched.values())

    def _batches_of(self, job: Entry) -> list[BatchEntry]:
        return [self._batches[name] for name in job.batches]

    def _stop(self, entry: BatchEntry) -> None:
        now = self._clock.now()
        for each in entry.below:
            if each.batch.finished_at is None:
                each.batch = each.batch._replace(stopping_at=each.batch.stopping_at or now)

    def _finish(self, entries: Iterable[BatchEntry]) -> None:
        """Finish those that are complete, the oldest first, then the batches around them."""
        waiting = list(entries)
        while waiting:
            found = sorted((e for e in waiting if e.is_complete), key=lambda e: e.batch.row)
            for entry in found:
                rows = entry.members
                first = self._store.entries[min(rows)].definition if rows else None
                entry.batch, job = finish(
                    entry.batch,
                    self._clock.now(),
                    succeeded=entry.has_succeeded,
                    first=first and first.relations,
                )
                if job is not None:
                    self._create_following([job])
                    self._join(job, Accepted(job.id))
            parents = {entry.batch.new.parent for entry in found} - {None}
            waiting = [self._batches[str(parent)] for parent in parents]

    # -- maintenance ---------------------------------------------------------------------------

    def _to_cancel(self) -> list[Entry]:
        """Return the members that are to be cancelled and were not asked yet."""
        rows = sorted(
            row
            for entry in self._batches.values()
            if entry.batch.stopping_at is not None and entry.batch.finished_at is None
            for row in entry.waiting
            if not entry.members[row].linked
        )
        entries = (self._store.entries[row] for row in rows)
        return [e for e in entries if e.head.state not in ENDED and e.head.asked_at is None]

    def _is_kept(self, job: Entry) -> bool:
        """Return whether a batch needs this member."""
        return any(map(self._keeps_members, self._batches_of(job)))

    def _keeps_members(self, entry: BatchEntry) -> bool:
        fan_in = entry.batch.fan_in
        job = None if fan_in is None else self._store.by_id(fan_in)
        return keeps_members(entry.batch, None if job is None else job.head.state)

    def _drop(self, job: Entry) -> None:
        """Remove an ended job, from its batches too."""
        for entry in self._batches_of(job):
            entry.members.pop(job.definition.row, None)
            entry.waiting.discard(job.definition.row)
        self._store.drop(job)

    def _drop_batches(self, before: Instant, limit: int) -> None:
        """Remove batches that finished long ago, and in which neither member nor batch is left."""
        old = [
            (entry.batch.finished_at, entry.batch.row, entry)
            for entry in self._batches.values()
            if entry.batch.finished_at is not None and entry.batch.finished_at <= before
            if not entry.members and not entry.inner and not self._keeps_members(entry)
        ]
        for _, _, entry in sorted(old, key=lambda each: each[:2])[:limit]:
            new = entry.batch.new
            del self._batches[new.id]
            if new.parent is not None:
                self._batches[new.parent].inner.remove(entry)


def _matches(where: BatchFilter, batch: Batch) -> bool:
    is_in_time = where.opened_before is None or batch.created_at < where.opened_before
    return is_in_time and where.state in {None, batch.state}


def _member(entry: Entry) -> Member:
    outcome = entry.outcomes[-1] if entry.head.state in ENDED else None
    return Member(entry.record, outcome and outcome.result)
