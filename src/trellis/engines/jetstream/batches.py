"""Batches: one state for each, which changes in the batch of messages that ends a member.

The state counts; it does not list the members. A member counts once: with its first end, which is
that of its first generation. A job that stands for a new one is watched (`dependencies.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from trellis.core.batches import (
    Batch,
    NewBatch,
    finish,
    is_success,
    keeps_members,
    stops_the_rest,
)
from trellis.core.durations import Instant
from trellis.core.job import JobId, NewJob, Relations
from trellis.core.lifecycle import Transition
from trellis.core.states import ENDED, SUCCEEDED, State
from trellis.engines.audit import By, cancel_of, seal_of
from trellis.engines.batches import BatchStatus, Member
from trellis.engines.jetstream.dependencies import Dependencies
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.link import Written
from trellis.engines.jetstream.message import StoredEvent
from trellis.engines.jetstream.state import Followed, purge
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.jetstream.subjects import check_id, is_token
from trellis.engines.values import Accepted, Coalesced, CreateResult, Replaced
from trellis.engines.wire import codec_of


class BatchValue(NamedTuple):
    """A batch as it is stored."""

    batch: Batch
    members: int = 0
    #: Members that have not finished: created for it, and those that stand for a new one.
    waiting: int = 0
    linked: int = 0
    has_failed: bool = False
    #: What its first member belongs to, and where that one is in the order of creation.
    first: Relations | None = None
    first_order: int = 0
    #: The batches in it.
    inner: tuple[str, ...] = ()

    def is_complete(self, inner: Sequence[BatchValue]) -> bool:
        """Return whether it is sealed, has not finished and waits for nothing more."""
        batch = self.batch
        if batch.sealed_at is None or batch.finished_at is not None or self.waiting:
            return False
        if self.linked and batch.cancelled_at is None:
            return False
        return all(each.batch.finished_at is not None for each in inner)


CODEC: Final = codec_of(BatchValue)
#: Whether a member stands for a new job.
_IS_LINKED: Final = codec_of(bool)


#: Stages a job that follows others: without admission, but in the line of its key.
CreateFollowing: TypeAlias = Callable[[Draft, NewJob], Awaitable[None]]


def _is_stopping(value: BatchValue) -> bool:
    return value.batch.stopping_at is not None and value.batch.finished_at is None


def _is_unfinished(value: BatchValue) -> bool:
    return value.batch.sealed_at is not None and value.batch.finished_at is None


class BatchTable:
    """All batches."""

    def __init__(self, store: Store, dependencies: Dependencies, create: CreateFollowing) -> None:
        self._store, self._dependencies, self._create = store, dependencies, create
        wanted = store.subjects.own("batch", "*")
        self._stopping = Followed(store, wanted, CODEC, _is_stopping)
        self._unfinished = Followed(store, wanted, CODEC, _is_unfinished)

    def _subject(self, batch_id: str) -> str:
        return self._store.subjects.own("batch", batch_id)

    async def read(self, draft: Draft, batch_id: str) -> BatchValue | None:
        """Return a batch; a text that is no token names none."""
        if not is_token(batch_id):
            return None
        found: BatchValue | None = await draft.value(self._subject(batch_id), CODEC)
        if found is not None and not found.batch.row:
            row = draft.sequence(self._subject(batch_id))
            return found._replace(batch=found.batch._replace(row=row))
        return found

    def put(self, draft: Draft, value: BatchValue, *, first: bool = False) -> None:
        """Stage a batch; `first`: before the events."""
        draft.put(self._subject(value.batch.new.id), value, first=first)

    # -- joining -------------------------------------------------------------------------------

    async def join(self, draft: Draft, new: NewJob, result: CreateResult) -> None:
        """Stage that a created job is a member of its batch, or which job stands for it."""
        batch_id = new.relations and new.relations.batch
        value = None if batch_id is None else await self.read(draft, batch_id)
        if value is None or batch_id is None:
            return
        if isinstance(result, Accepted | Replaced):
            # A member is counted, then marked, then created: one that is marked is counted, also
            # if its creation is repeated after an incomplete write.
            if draft.is_new(new.id) and not await self._is_marked(draft, batch_id, new.id):
                order = draft.sequence(self._subject(batch_id)) + 1 + draft.count_new()
                self.put(draft, _joined(value, new.relations, order, waiting=1), first=True)
                self._mark(draft, batch_id, new.id, is_linked=False)
        elif isinstance(result, Coalesced):
            await self._link(draft, value, result.existing)

    async def _link(self, draft: Draft, value: BatchValue, existing: JobId) -> None:
        current = await draft.job(existing)
        batch_id = value.batch.new.id
        if current is None or await self._is_marked(draft, batch_id, existing):
            return
        own = current.definition.relations
        has_ended = current.head.state in ENDED
        row = current.definition.row
        value = _joined(value, own, row, waiting=0)._replace(
            linked=value.linked + (not has_ended),
            has_failed=value.has_failed or (has_ended and not is_success(current.head.state)),
        )
        if not has_ended:
            await self._dependencies.stand_in(draft, current, batch_id)
        self.put(draft, value, first=True)
        self._mark(draft, batch_id, existing, is_linked=True)

    async def _is_marked(self, draft: Draft, batch_id: str, job_id: JobId) -> bool:
        """Return whether a job is a member already."""
        subject = self._store.subjects.own("member", batch_id, job_id, "linked")
        return await draft.value(subject, _IS_LINKED) is not None

    def _mark(self, draft: Draft, batch_id: str, job_id: JobId, *, is_linked: bool) -> None:
        """Stage that a job is a member, which it was not before.

        A job that stands for a new one must be known to projections when they read that it does.
        """
        subject = self._store.subjects.own("member", batch_id, job_id, "linked")
        draft.put(subject, is_linked, first=not is_linked)

    async def restore(self, draft: Draft, batch: Batch) -> None:
        """Stage a batch of another store, without its members, unless it is here."""
        if await self.read(draft, batch.new.id) is not None:
            return
        self.put(draft, BatchValue(batch))
        outer = None if batch.new.parent is None else await self.read(draft, batch.new.parent)
        if outer is not None:
            self.put(draft, outer._replace(inner=(*outer.inner, batch.new.id)))

    async def restore_member(
        self, draft: Draft, batch_id: str, current: Current, *,
        is_linked: bool, succeeded: bool | None,
    ) -> None:  # fmt: skip
        """Stage that a job of another store is a member; `succeeded` is None: it has not ended."""
        value = await self.read(draft, batch_id)
        job_id = current.job.id
        if value is None or await self._is_marked(draft, batch_id, job_id):
            return
        self._mark(draft, batch_id, job_id, is_linked=is_linked)
        is_open = succeeded is None
        order = draft.sequence(self._subject(batch_id)) + 1 + draft.count_new()
        joined = _joined(
            value, current.definition.relations, order, waiting=int(is_open and not is_linked)
        )
        self.put(
            draft,
            joined._replace(
                linked=joined.linked + int(is_open and is_linked),
                has_failed=joined.has_failed or succeeded is False,
            ),
        )
        if is_open and is_linked:
            await self._dependencies.stand_in(draft, current, batch_id)

    async def drop_member(self, draft: Draft, batch_id: str, job_id: JobId) -> None:
        """Stage that a member is removed."""
        subject = self._store.subjects.own("member", batch_id, job_id, "linked")
        if await draft.value(subject, _IS_LINKED) is not None:
            draft.put(subject, None)

    async def members(self, batch_id: str) -> list[tuple[Current, bool]]:
        """Return the members of a batch in creation order; whether each stands for a new job."""
        if not is_token(batch_id):
            return []
        wanted = self._store.subjects.own("member", batch_id, "*", "linked")
        found = await self._store.values([wanted], _IS_LINKED)
        ids = [JobId(subject.split(".")[-2]) for subject, _ in found]
        jobs = await self._store.find_many(ids)
        linked = [bool(value.value) for _, value in found]
        pairs = [
            (job, is_linked)
            for job, is_linked in zip(jobs, linked, strict=True)
            if isinstance(job, Current)
        ]
        return sorted(pairs, key=lambda each: each[0].definition.row)

    async def all(self) -> list[BatchValue]:
        """Return all batches, in order of opening."""
        found = await self._store.values([self._store.subjects.own("batch", "*")], CODEC)
        values = []
        for _, (value, sequence) in found:
            if value is not None:
                row = value.batch.row or sequence
                values.append(value._replace(batch=value.batch._replace(row=row)))
        return sorted(values, key=lambda each: each.batch.row)

    async def stopping(self) -> list[BatchValue]:
        """Return the batches whose members are to be cancelled."""
        return [each.value for each in await self._stopping.look()]

    async def unfinished(self) -> dict[str, int]:
        """Return the sealed batches that have not finished, with the sequences of their states."""
        return {each.value.batch.new.id: each.sequence for each in await self._unfinished.look()}

    async def count_again(self, batch_id: str, sequence: int) -> bool:
        """Correct the count of a batch that is still as it was; return whether it has finished."""
        members = await self.members(batch_id)
        draft = Draft(self._store)
        value = await self.read(draft, batch_id)
        if value is None or draft.sequence(self._subject(batch_id)) != sequence:
            return False
        waiting = linked = 0
        has_failed = value.has_failed
        for member, is_linked in members:
            state, generation = member.head.state, member.head.generation
            if state in ENDED:
                # A later end than that of its first generation changes nothing.
                has_failed |= generation == 0 and not is_success(state)
            elif is_linked:
                linked += batch_id in (await self._dependencies.watch(draft, member.job.id)).batches
            else:
                waiting += generation == 0
        counted = value._replace(waiting=waiting, linked=linked, has_failed=has_failed)
        if counted != value:
            self.put(draft, counted)
        await self.finish(draft, [batch_id])
        if draft.is_empty or not isinstance(await draft.write(), Written):
            return False
        after = await self.read(Draft(self._store), batch_id)
        return after is not None and after.batch.finished_at is not None

    # -- finishing -----------------------------------------------------------------------------

    async def end(self, draft: Draft, transition: Transition, linked: Sequence[str]) -> list[str]:
        """Stage that a member has ended in the batches that wait for it; return these."""
        relations, before = transition.definition.relations, transition.before
        state = transition.head.state
        touched = []
        if relations is not None and relations.batch is not None and before.generation == 0:
            value = await self.read(draft, relations.batch)
            if value is not None and value.waiting:
                await self._count(draft, value._replace(waiting=value.waiting - 1), state)
                touched.append(relations.batch)
        for batch_id in linked:
            value = await self.read(draft, batch_id)
            if value is not None and value.linked:
                await self._count(draft, value._replace(linked=value.linked - 1), state)
                touched.append(batch_id)
        return touched

    async def _count(self, draft: Draft, value: BatchValue, state: State) -> None:
        value = value._replace(has_failed=value.has_failed or not is_success(state))
        self.put(draft, value)
        if stops_the_rest(value.batch, state):
            for each in await self.below(draft, value):
                if each.batch.finished_at is None:
                    stopping = each.batch.stopping_at or draft.now
                    self.put(draft, each._replace(batch=each.batch._replace(stopping_at=stopping)))

    async def below(self, draft: Draft, value: BatchValue) -> list[BatchValue]:
        """Return a batch and all batches in it."""
        found = [value]
        for batch_id in value.inner:
            inner = await self.read(draft, batch_id)
            if inner is not None:
                found += await self.below(draft, inner)
        return found

    async def finish(self, draft: Draft, batch_ids: Sequence[str]) -> list[NewJob]:
        """Stage the end of those that are complete, and of the batches around them.

        Return the fan-in jobs, which the caller creates.
        """
        jobs: list[NewJob] = []
        waiting = list(dict.fromkeys(batch_ids))
        while waiting:
            parents: list[str] = []
            for batch_id in waiting:
                value = await self.read(draft, batch_id)
                if value is None:
                    continue
                inner = [each for name in value.inner
                         if (each := await self.read(draft, name)) is not None]  # fmt: skip
                if not value.is_complete(inner):
                    continue
                succeeded = not value.has_failed and all(e.batch.succeeded for e in inner)
                batch, job = finish(value.batch, draft.now, succeeded=succeeded, first=value.first)
                self.put(draft, value._replace(batch=batch))
                if job is not None:
                    jobs.append(job)
                    if not isinstance(await draft.find(job.id), Current):
                        await self._create(draft, job)
                        await self.join(draft, job, Accepted(job.id))
                if batch.new.parent is not None:
                    parents.append(batch.new.parent)
            waiting = list(dict.fromkeys(parents))
        return jobs


def _joined(
    value: BatchValue, relations: Relations | None, order: int, *, waiting: int
) -> BatchValue:
    is_first = not value.members or order < value.first_order
    return value._replace(
        members=value.members + 1,
        waiting=value.waiting + waiting,
        first=relations if is_first else value.first,
        first_order=order if is_first else value.first_order,
    )


class BatchVerbs:
    """The part of the engine that groups jobs."""

    _store: Store
    _batches: BatchTable
    #: The batches that had not finished at the last look: their sequences, and for how many looks
    #: these had not changed.
    _looked: Mapping[str, tuple[int, int]] = MappingProxyType({})

    async def open_batch(self, new: NewBatch) -> Batch | None:
        """Open a batch."""
        check_id(new.id, "batch")
        while True:
            draft = Draft(self._store)
            found = await self._batches.read(draft, new.id)
            if found is not None:
                return found.batch
            if new.parent is not None:
                outer = await self._batches.read(draft, new.parent)
                if outer is None or outer.batch.admits != "members":
                    return None
                inner = tuple(each for each in outer.inner if each != new.id)
                self._batches.put(draft, outer._replace(inner=(*inner, new.id)), first=True)
            self._batches.put(draft, BatchValue(Batch(new, 0, draft.now)))
            await draft.write()

    async def batch(self, batch_id: str) -> Batch | None:
        """Return a batch."""
        found = await self._batches.read(Draft(self._store), batch_id)
        return None if found is None else found.batch

    async def seal_batch(self, batch_id: str, by: By | None = None) -> Batch | None:
        """Let a batch finish once its members have."""
        while True:
            draft = Draft(self._store)
            value = await self._batches.read(draft, batch_id)
            if value is None:
                return None
            if value.batch.sealed_at is not None or value.batch.finished_at is not None:
                return value.batch
            sealed = value._replace(batch=value.batch._replace(sealed_at=draft.now))
            self._batches.put(draft, sealed)
            if by is not None:
                draft.record(seal_of(batch_id), by)
            await self._batches.finish(draft, [batch_id])
            if isinstance(await draft.write(), Written):
                return await self.batch(batch_id)

    async def cancel_batch(self, batch_id: str, by: By) -> Batch | None:
        """Take no more members, and have the unfinished ones cancelled."""
        while True:
            draft = Draft(self._store)
            value = await self._batches.read(draft, batch_id)
            if value is None or value.batch.admits == "nothing":
                return None if value is None else value.batch
            before, below = value.batch.state, await self._batches.below(draft, value)
            for each in below:
                if each.batch.finished_at is None:
                    self._batches.put(draft, each._replace(batch=_cancelled(each.batch, draft.now)))
            draft.record(cancel_of(batch_id, before), by)
            await self._batches.finish(draft, [each.batch.new.id for each in below])
            if isinstance(await draft.write(), Written):
                return await self.batch(batch_id)

    async def batch_statuses(self, batch_ids: Sequence[str]) -> list[BatchStatus | None]:
        """Return these batches with the number of their members in each state."""
        return [await self._batch_status(batch_id) for batch_id in batch_ids]

    async def _batch_status(self, batch_id: str) -> BatchStatus | None:
        draft = Draft(self._store)
        value = await self._batches.read(draft, batch_id)
        if value is None:
            return None
        members = await self._batches.members(batch_id)
        states = Counter(each.head.state for each, _ in members)
        counts = dict(sorted(states.items(), key=lambda each: each[0].value))
        inner = [await self._batches.read(draft, name) for name in value.inner]
        finished = len(members) - value.waiting - value.linked
        return BatchStatus(
            value.batch, counts, finished, tuple(each.batch for each in inner if each is not None)
        )

    async def members(self, batch_id: str, after: int = 0, limit: int = 500) -> list[Member]:
        """Return members of a batch in creation order."""
        found = await self._batches.members(batch_id)
        jobs = [each for each, _ in found if each.definition.row > after]
        return [Member(each.record, await self._result(each)) for each in jobs[:limit]]

    async def _result(self, current: Current) -> str | None:
        """Return the result of an ended job."""
        if current.head.state not in SUCCEEDED:
            return None
        subjects = self._store.subjects
        got = await self._store.link.last(subjects.jobs, subjects.event(current.job, "completed"))
        stored = None if got is None else self._store.decode(got)
        return stored.raw if isinstance(stored, StoredEvent) else None

    async def _to_cancel(self) -> list[Current]:
        """Return the members that are to be cancelled and were not asked yet."""
        found: dict[int, Current] = {}
        for value in await self._batches.stopping():
            for job, is_linked in await self._batches.members(value.batch.new.id):
                is_live = job.head.state not in ENDED and job.head.asked_at is None
                # One that runs again has finished for the batch before.
                if is_live and not is_linked and not job.head.generation:
                    found[job.definition.row] = job
        return [found[row] for row in sorted(found)]

    async def _prune_batches(self, before: Instant, limit: int) -> None:
        """Remove batches that finished long ago, and in which neither member nor batch is left."""
        values = await self._batches.all()
        old = [each for each in values if (each.batch.finished_at or before + 1) <= before]
        for value in sorted(old, key=lambda each: each.batch.finished_at or 0):
            if limit <= 0:
                return
            with self._store.passing_over():
                limit -= await self._prune_batch(value)

    async def _prune_batch(self, value: BatchValue) -> bool:
        """Remove a batch that nothing needs any more; return whether it was removed."""
        batch_id, fan_in = value.batch.new.id, value.batch.fan_in
        draft = Draft(self._store)
        inner = [await self._batches.read(draft, name) for name in value.inner]
        job = None if fan_in is None else await draft.job(fan_in)
        is_read = keeps_members(value.batch, None if job is None else job.head.state)
        if is_read or any(inner) or await self._batches.members(batch_id):
            return False
        if await self._batches.read(draft, batch_id) is None:
            return False
        draft.put(self._store.subjects.own("batch", batch_id), None)
        if isinstance(await draft.write(), Written):
            # Of jobs that stood for others and were removed since.
            await purge(self._store, self._store.subjects.own("member", batch_id, "*", "linked"))
        return True

    async def finish_batches(self, limit: int) -> int:
        """Finish batches whose count an incomplete write has left wrong; return how many.

        All others finish with their last member. A batch that has not changed for some calls is
        counted again.
        """
        finished, before = 0, self._looked
        self._looked = looked = dict[str, tuple[int, int]]()
        for batch_id, sequence in (await self._batches.unfinished()).items():
            known, looks = before.get(batch_id, (sequence, 0))
            looks = looks if known == sequence else 0
            looked[batch_id] = sequence, looks + 1
            # All members are read for it: after 1, 2, 4, 8, ... looks without a change.
            if looks and not looks & (looks - 1) and finished < limit:
                with self._store.passing_over():
                    finished += await self._batches.count_again(batch_id, sequence)
        return finished


def _cancelled(batch: Batch, now: Instant) -> Batch:
    return batch._replace(
        cancelled_at=batch.cancelled_at or now,
        sealed_at=batch.sealed_at or now,
        stopping_at=batch.stopping_at or now,
    )
