"""Batches as people and handlers see them: progress, members with their results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from trellis.core.batches import Batch, BatchState, FireOn, OnFailure
from trellis.core.durations import Instant, micros, to_datetime
from trellis.core.states import ENDED, SUCCEEDED, State
from trellis.declaration.secrets import masked
from trellis.engines.batches import BatchFilter, BatchStatus, Member
from trellis.engines.port import Engine
from trellis.errors import EngineUnavailable, no_such_batch
from trellis.insight.views import ErrorView, error_view

_PAGE: Final = 500
#: Seconds between two looks at a batch that is waited for.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: A batch that was open for longer than this was probably forgotten by its creator.
OPEN_TOO_LONG: Final = micros("1h")


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far a batch is."""

    #: Members by their present state; a member that an operator has run again counts as it is now.
    counts: Mapping[State, int]
    #: How many members there are, and how many have ended at least once.
    total: int
    finished: int
    #: How many of them succeeded, and how many ended otherwise, in their present state.
    succeeded: int
    unsuccessful: int
    #: How many batches there are in it, and how many of them have finished.
    batches: int
    finished_batches: int
    #: Whether it takes no more members.
    is_sealed: bool

    @property
    def percent(self) -> float:
        """The part of the members, and of the batches in it, that has finished.

        A batch without any is at 0 while it is open, and at 100 once it is sealed.
        """
        total = self.total + self.batches
        if not total:
            return 100.0 if self.is_sealed else 0.0
        return 100.0 * (self.finished + self.finished_batches) / total


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch."""

    id: str
    service: str
    name: str
    #: `open` takes members, `sealed` waits for them, then `finished` or `cancelled`.
    state: BatchState
    fire_on: FireOn
    on_failure: OnFailure
    #: The batch that this one is a part of.
    parent: str | None
    #: The type of its fan-in job, and that job once the batch has finished.
    then: str | None
    fan_in: str | None
    created_at: datetime
    sealed_at: datetime | None
    cancelled_at: datetime | None
    finished_at: datetime | None
    #: Whether all members succeeded; None before it has finished.
    succeeded: bool | None
    #: None in lists.
    progress: BatchProgress | None = None
    #: The batches in it.
    children: tuple[BatchView, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member of a batch."""

    id: str
    #: Service and type, like `shop/invoice`.
    type: str
    state: State
    #: What its handler returned, as plain data.
    result: Any
    error: ErrorView | None


def batch_view(batch: Batch, status: BatchStatus | None = None) -> BatchView:
    """Return a batch as people see it."""
    new, then = batch.new, batch.new.then
    return BatchView(
        id=new.id,
        service=new.service,
        name=new.name,
        state=batch.state,
        fire_on=new.fire_on,
        on_failure=new.on_failure,
        parent=new.parent,
        then=None if then is None else f"{then.service}/{then.type}",
        fan_in=batch.fan_in,
        created_at=to_datetime(batch.created_at),
        sealed_at=None if batch.sealed_at is None else to_datetime(batch.sealed_at),
        cancelled_at=None if batch.cancelled_at is None else to_datetime(batch.cancelled_at),
        finished_at=None if batch.finished_at is None else to_datetime(batch.finished_at),
        succeeded=batch.succeeded,
        progress=None if status is None else progress_of(status),
        children=() if status is None else tuple(map(batch_view, status.children)),
    )


def progress_of(status: BatchStatus) -> BatchProgress:
    """Return how far a batch is."""
    counts = status.counts
    succeeded = sum(number for state, number in counts.items() if state in SUCCEEDED)
    ended = sum(number for state, number in counts.items() if state in ENDED)
    return BatchProgress(
        counts=counts,
        total=status.total,
        finished=status.finished,
        succeeded=succeeded,
        unsuccessful=ended - succeeded,
        batches=len(status.children),
        finished_batches=sum(each.finished_at is not None for each in status.children),
        is_sealed=status.batch.sealed_at is not None,
    )


async def load_status(engine: Engine, batch_id: str) -> BatchStatus:
    """Return the status of a batch; raise `BatchNotFound`."""
    (status,) = await engine.batch_statuses([batch_id])
    if status is None:
        raise no_such_batch(batch_id)
    return status


async def load_batch(engine: Engine, batch_id: str) -> Batch:
    """Return a batch without counting its members; raise `BatchNotFound`."""
    batch = await engine.batch(batch_id)
    if batch is None:
        raise no_such_batch(batch_id)
    return batch


async def load_view(engine: Engine, batch_id: str) -> BatchView:
    """Return a batch with its progress; raise `BatchNotFound`."""
    status = await load_status(engine, batch_id)
    return batch_view(status.batch, status)


async def list_views(
    engine: Engine, state: BatchState | None = None, limit: int = 50
) -> list[BatchView]:
    """Return batches with their progress, the newest first."""
    listed = await engine.batches(BatchFilter(state), limit=limit)
    statuses = await engine.batch_statuses([batch.new.id for batch in listed])
    return [batch_view(status.batch, status) for status in statuses if status is not None]


async def forgotten_batches(engine: Engine, now: Instant) -> list[BatchView]:
    """Return batches that have been open for too long, at most 50 of them."""
    return [batch_view(e) for e in await engine.batches(BatchFilter("open", now - OPEN_TOO_LONG))]


async def members_of(
    engine: Engine, batch_id: str, *, shows_secrets: bool = False
) -> AsyncGenerator[MemberView, None]:
    """Yield the members of a batch in creation order, read page by page."""
    await load_batch(engine, batch_id)
    after = 0
    while True:
        page = await engine.members(batch_id, after, _PAGE)
        for member in page:
            yield _member_view(member, shows_secrets=shows_secrets)
        if len(page) < _PAGE:
            return
        after = page[-1].record.definition.row


def _member_view(member: Member, *, shows_secrets: bool) -> MemberView:
    (definition, head), text = member
    if text is not None and not shows_secrets:
        text = masked(text, definition.policy, "result")
    return MemberView(
        id=definition.id,
        type=f"{definition.service}/{definition.type}",
        state=head.state,
        result=None if text is None else json.loads(text),
        error=error_view(head.error),
    )


async def until_finished(engine: Engine, batch_id: str) -> BatchView:
    """Wait until a batch has finished; an engine that cannot be reached is waited for."""
    pause = _FIRST_PAUSE
    while True:
        try:
            if (await load_batch(engine, batch_id)).finished_at is not None:
                return await load_view(engine, batch_id)
        except EngineUnavailable:
            pass
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
