"""Arguments and answers of the port's verbs about batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trellis.core.batches import Batch, BatchState
from trellis.core.durations import Instant
from trellis.core.job import JobRecord
from trellis.core.states import State


class BatchStatus(NamedTuple):
    """A batch, its members by their present state, and the batches in it."""

    batch: Batch
    counts: Mapping[State, int]
    #: How many members have finished; what is retried later stays finished.
    finished: int
    children: tuple[Batch, ...] = ()

    @property
    def total(self) -> int:
        """The number of members."""
        return sum(self.counts.values())


class Member(NamedTuple):
    """A member of a batch: the job as it is now, and its result as JSON text."""

    record: JobRecord
    result: str | None


class BatchFilter(NamedTuple):
    """Which batches; None means any."""

    state: BatchState | None = None
    opened_before: Instant | None = None
