"""Batches of the memory engine: verbs, and what the end of a member does to its batches."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from trellis.core.batches import Batch, NewBatch, finish, is_success, stops_the_rest
from trellis.core.job import NewJob
from trellis.core.lifecycle import Transition
from trellis.core.states import ENDED, State
from trellis.engines.audit import By, Change
from trellis.engines.batches import BatchFilter, BatchStatus, Member
from trellis.engines.clock import Clock
from trellis.engines.memory.store import Entry, Store
from trellis.engines.values import Accepted, Coalesced, CreateResult, Replaced


@dataclass(slots=True)
class Membership:
    """One member: how it finished, and whether an existing job stands for a new one."""

    linked: bool
    finished_as: State | None = None


@dataclass(slots=True)
class BatchEntry:
    """One batch with its members by row."""

    batch: Batch
    members: dict[int, Membership] = field(default_factory=dict)


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
            row = max((each.batch.row for each in self._batches.values()), default=0) + 1
            batch = Batch(new, row, self._clock.now())
            return self._batches.setdefault(new.id, BatchEntry(batch)).batch

    async def seal_batch(self, batch_id: str, by: By | None = None) -> Batch | None:
        """Let a batch finish once its members have."""
        with self._lock:
            entry = self._batches.get(batch_id)
            if entry is None:
                return None
            if entry.batch.sealed_at is None and entry.batch.finished_at is None:
                entry.batch = entry.batch._replace(sealed_at=self._clock.now())
                if by is not None:
                    self._store.record(Change("batch.seal", batch_id, "open", "sealed"), by)
                self._finish([entry])
            return entry.batch

    async def cancel_batch(self, batch_id: str, by: By) -> Batch | None:
        """Take no more members, and have the unfinished ones cancelled."""
        with self._lock:
            entry = self._batches.get(batch_id)
            if entry is None or entry.batch.admits == "nothing":
                return None if entry is None else entry.batch
            before, now = entry.batch.state, self._clock.now()
            for each in (below := self._below(entry)):
                batch = each.batch
                if batch.finished_at is None:
                    each.batch = batch._replace(
                        cancelled_at=batch.cancelled_at or now,
                        sealed_at=batch.sealed_at or now,
                        stopping_at=batch.stopping_at or now,
                    )
            self._store.record(Change("batch.cancel", batch_id, before, "cancelled"), by)
            self._finish(below)
            return entry.batch

    async def finish_batches(self, limit: int) -> int:
        """Finish batches that are complete and were left behind."""
        with self._lock:
            complete = list(islice(filter(self._is_complete, self._batches.values()), limit))
            self._finish(complete)
            return len(complete)

    async def batch_status(self, batch_id: str) -> BatchStatus | None:
        """Return a batch with the number of its members in each state."""
        with self._lock:
            entry = self._batches.get(batch_id)
            if entry is None:
                return None
            states = Counter(self._store.entries[row].head.state for row in entry.members)
            finished = sum(each.finished_as is not None for each in entry.members.values())
            children = tuple(each.batch for each in self._in(entry))
            counts = dict(sorted(states.items(), key=lambda each: each[0].value))
            return BatchStatus(entry.batch, counts, finished, children)

    async def batches(
        self, where: BatchFilter, *, after: int | None = None, limit: int = 50
    ) -> list[Batch]:
        """Return a page of batches, the newest first."""
        with self._lock:
            every = sorted((e.batch for e in self._batches.values()), key=lambda b: -b.row)
            found = (
                batch
                for batch in every
                if (after is None or batch.row < after) and where.state in {None, batch.state}
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
        entry.members.setdefault(row, member)
        self._store.entries[row].batches.add(entry.batch.new.id)

    # -- finishing -----------------------------------------------------------------------------

    def _finish_member(self, transition: Transition) -> None:
        """Record that a job has ended in every batch that waits for it."""
        row, state = transition.definition.row, transition.head.state
        waiting = []
        for entry in self._batches.values():
            member = entry.members.get(row)
            if member is None or member.finished_as is not None:
                continue
            member.finished_as = state
            if stops_the_rest(entry.batch, state):
                self._stop(entry)
            waiting.append(entry)
        self._finish(waiting)

    def _stop(self, entry: BatchEntry) -> None:
        now = self._clock.now()
        for each in self._below(entry):
            if each.batch.finished_at is None:
                each.batch = each.batch._replace(stopping_at=each.batch.stopping_at or now)

    def _finish(self, entries: Iterable[BatchEntry]) -> None:
        """Finish those that are complete, then the batches around them."""
        waiting = list(entries)
        while waiting:
            entry = waiting.pop()
            if not self._is_complete(entry):
                continue
            succeeded = all(
                is_success(each.finished_as)
                for each in entry.members.values()
                if each.finished_as is not None
            ) and all(each.batch.succeeded for each in self._in(entry))
            first = self._store.entries[min(entry.members)].definition if entry.members else None
            entry.batch, job = finish(
                entry.batch,
                self._clock.now(),
                succeeded=succeeded,
                first=first and first.relations,
            )
            if job is not None:
                self._create_following([job])
                self._join(job, Accepted(job.id))
            if entry.batch.new.parent is not None:
                waiting.append(self._batches[entry.batch.new.parent])

    def _is_complete(self, entry: BatchEntry) -> bool:
        batch = entry.batch
        if batch.sealed_at is None or batch.finished_at is not None:
            return False
        is_cancelled = batch.cancelled_at is not None
        waits = any(
            each.finished_as is None and not (each.linked and is_cancelled)
            for each in entry.members.values()
        )
        return not waits and all(each.batch.finished_at is not None for each in self._in(entry))

    def _in(self, entry: BatchEntry) -> list[BatchEntry]:
        return [e for e in self._batches.values() if e.batch.new.parent == entry.batch.new.id]

    def _below(self, entry: BatchEntry) -> list[BatchEntry]:
        """Return a batch and all batches in it."""
        return [entry, *(deeper for each in self._in(entry) for deeper in self._below(each))]

    # -- maintenance ---------------------------------------------------------------------------

    def _to_cancel(self) -> list[Entry]:
        """Return the members that are to be cancelled and were not asked yet."""
        rows = sorted(
            row
            for entry in self._batches.values()
            if entry.batch.stopping_at is not None and entry.batch.finished_at is None
            for row, member in entry.members.items()
            if member.finished_as is None and not member.linked
        )
        entries = (self._store.entries[row] for row in rows)
        return [e for e in entries if e.head.state not in ENDED and e.head.asked_at is None]

    def _is_in_unfinished_batch(self, row: int) -> bool:
        return any(
            row in entry.members and entry.batch.finished_at is None
            for entry in self._batches.values()
        )

    def _drop(self, job: Entry) -> None:
        """Remove an ended job, from its batches too."""
        for entry in self._batches.values():
            entry.members.pop(job.definition.row, None)
        self._store.drop(job)

    def _drop_batches(self, before: int) -> None:
        """Remove batches that finished long ago and have no members left."""
        for batch_id, entry in list(self._batches.items()):
            finished = entry.batch.finished_at
            if finished is not None and finished <= before and not entry.members:
                del self._batches[batch_id]


def _member(entry: Entry) -> Member:
    outcome = entry.outcomes[-1] if entry.head.state in ENDED else None
    return Member(entry.record, outcome and outcome.result)
