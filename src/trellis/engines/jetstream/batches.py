"""Batches: one state for each, which changes in the batch of messages that ends a member.

The state counts; it does not list the members. A member counts once: with its first end, which is
that of its first generation. A job that stands for a new one is watched (`dependencies.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from trellis.core.batches import Batch, NewBatch, finish, is_success, stops_the_rest
from trellis.core.durations import Instant
from trellis.core.job import JobId, NewJob, Relations
from trellis.core.lifecycle import Transition
from trellis.core.states import ENDED, State
from trellis.engines.audit import By, Change
from trellis.engines.jetstream.dependencies import Dependencies
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.link import Written
from trellis.engines.jetstream.store import Store
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
_JOINED: Final = codec_of(bool)


class BatchTable:
    """All batches."""

    def __init__(self, store: Store, dependencies: Dependencies) -> None:
        self._store, self._dependencies = store, dependencies

    def _subject(self, batch_id: str) -> str:
        return self._store.subjects.own("batch", batch_id)

    async def read(self, draft: Draft, batch_id: str) -> BatchValue | None:
        """Return a batch."""
        found: BatchValue | None = await draft.value(self._subject(batch_id), CODEC)
        if found is not None and not found.batch.row:
            row = draft.sequence(self._subject(batch_id))
            return found._replace(batch=found.batch._replace(row=row))
        return found

    def put(self, draft: Draft, value: BatchValue) -> None:
        """Stage a batch."""
        draft.put(self._subject(value.batch.new.id), value)

    # -- joining -------------------------------------------------------------------------------

    async def join(self, draft: Draft, new: NewJob, result: CreateResult) -> None:
        """Stage that a created job is a member of its batch, or which job stands for it."""
        batch_id = new.relations and new.relations.batch
        value = None if batch_id is None else await self.read(draft, batch_id)
        if value is None or batch_id is None:
            return
        if isinstance(result, Accepted | Replaced):
            if draft.is_new(new.id):
                order = draft.sequence(self._subject(batch_id)) + 1 + draft.count_new()
                self.put(draft, _joined(value, new.relations, order, waiting=1))
        elif isinstance(result, Coalesced):
            await self._link(draft, value, result.existing)

    async def _link(self, draft: Draft, value: BatchValue, existing: JobId) -> None:
        current = await draft.job(existing)
        batch_id = value.batch.new.id
        mark = self._store.subjects.own("joined", batch_id, existing, "x")
        if current is None or await draft.value(mark, _JOINED):
            return
        own = current.definition.relations
        if own is not None and own.batch == batch_id:
            return
        draft.put(mark, True)
        has_ended = current.head.state in ENDED
        row = current.definition.row
        value = _joined(value, own, row, waiting=0)._replace(
            linked=value.linked + (not has_ended),
            has_failed=value.has_failed or (has_ended and not is_success(current.head.state)),
        )
        self.put(draft, value)
        if not has_ended:
            await self._dependencies.stand_in(draft, current, batch_id)

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
                    draft.create(job)
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

    async def open_batch(self, new: NewBatch) -> Batch | None:
        """Open a batch."""
        while True:
            draft = Draft(self._store)
            found = await self._batches.read(draft, new.id)
            if found is not None:
                return found.batch
            if new.parent is not None:
                outer = await self._batches.read(draft, new.parent)
                if outer is None or outer.batch.admits != "members":
                    return None
                self._batches.put(draft, outer._replace(inner=(*outer.inner, new.id)))
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
                draft.record(Change("batch.seal", batch_id, "open", "sealed"), by)
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
            draft.record(Change("batch.cancel", batch_id, before, "cancelled"), by)
            await self._batches.finish(draft, [each.batch.new.id for each in below])
            if isinstance(await draft.write(), Written):
                return await self.batch(batch_id)

    async def finish_batches(self, limit: int) -> int:  # noqa: ARG002 - as in the port
        """Return that there is nothing to finish: batches finish with their last member."""
        return 0


def _cancelled(batch: Batch, now: Instant) -> Batch:
    return batch._replace(
        cancelled_at=batch.cancelled_at or now,
        sealed_at=batch.sealed_at or now,
        stopping_at=batch.stopping_at or now,
    )
