"""The part of the engine port about flow: order, schedules, dependencies, limits and batches.

`port.py` says what every engine promises, and puts all parts together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trellis.core.batches import Batch, NewBatch
from trellis.core.dependencies import Link
from trellis.core.durations import Instant, Micros
from trellis.core.job import JobId, NewJob
from trellis.core.limits import Limit, LimitChange, LimitSetting, Scope
from trellis.core.schedules import Schedule, Step
from trellis.engines.audit import OPERATOR, By, Change
from trellis.engines.batches import BatchFilter, BatchStatus, Member
from trellis.engines.limits import LimitStatus
from trellis.engines.schedules import DueSchedules, SlotRecord
from trellis.engines.values import CreateResult


class Ordering(Protocol):
    """Verbs about the order of claims; see `trellis.core.fairness`."""

    async def set_aging(self, aging: Micros | None, by: By) -> None:
        """Let a waiting job count one priority higher for each such span since it was due.

        None turns that off. It is one setting of the whole store. `core.fairness.check_aging` has
        passed the span.
        """

    async def aging(self) -> Micros | None:
        """Return that span; None: off."""


class Schedules(Protocol):
    """Verbs about schedules and the ledger of their slots."""

    async def schedules(self, services: Sequence[str] = ()) -> list[Schedule]:
        """Return the schedules of these services, or of all; by service and name."""

    async def add_schedules(self, added: Sequence[Schedule]) -> list[bool]:
        """Store new schedules, each separately; False: there is one of that name already."""

    async def due_schedules(self, limit: int) -> DueSchedules:
        """Return the schedules whose next slot is not after now, and the next slot after now."""

    async def advance_schedule(
        self, step: Step, change: Change | None = None, by: By = OPERATOR
    ) -> list[SlotRecord] | None:
        """Store a step whole: jobs of due slots, the ledger, the schedule, an audit entry.

        Each job passes the ordinary admission; one that is not accepted makes its slot `skipped`.
        Slots that the ledger has already are left alone. Returns the new entries; None, and nothing
        is stored, if the version of the schedule has changed, or `until` has come.
        """

    async def run_schedule(self, schedule: Schedule, new: NewJob, by: By) -> CreateResult | None:
        """Create a job of a schedule outside of its slots, with an audit entry if it is stored.

        None, and nothing is stored, if the version of the schedule has changed.
        """

    async def slots(
        self, service: str, name: str, *, before: Instant | None = None, limit: int = 50
    ) -> list[SlotRecord]:
        """Return entries of the ledger, the latest slots first; `before`: earlier than this."""


class Dependencies(Protocol):
    """Verbs about jobs that wait for others; creating and settling jobs does the rest."""

    async def links(self, ids: Sequence[JobId], limit: int = 1000) -> list[Link]:
        """Return which jobs these wait or waited for, and which wait or waited for them.

        In order of creation of the waiting job, then of the other; at most `limit`.
        """


class Limits(Protocol):
    """Verbs about limits over the fleet, of queues and of types.

    `claim` takes no more jobs than the limits let start, by the engine's clock: claimed jobs and
    ended attempts whose handlers may still run are counted from their rows, and each job that is
    claimed costs a token of the rates of its queue and type.
    """

    async def declare_limits(self, declared: Sequence[tuple[Scope, Limit]]) -> None:
        """Store the limits that the code declares; what operators have set still wins."""

    async def change_limit(self, scope: Scope, change: LimitChange, by: By) -> LimitSetting:
        """Set parts of a limit as an operator, or let the declared limit count again."""

    async def limits(self) -> list[LimitStatus]:
        """Return all limits, unlimited scopes that had one included, by kind and name."""


class Batches(Protocol):
    """Verbs about batches; jobs join one by being created with its id (`Relations.batch`).

    When a batch is sealed and all its members have finished, it finishes in the transaction that
    ended the last of them, together with its fan-in job.
    """

    async def open_batch(self, new: NewBatch) -> Batch | None:
        """Open a batch; None if the batch around it accepts no more.

        Repeating the call changes nothing.
        """

    async def seal_batch(self, batch_id: str, by: By | None = None) -> Batch | None:
        """Let a batch finish once its members have; at once if it has none.

        An operator is named by `by`. None: there is no such batch. Repeating changes nothing.
        """

    async def cancel_batch(self, batch_id: str, by: By) -> Batch | None:
        """Accept no more members, create no fan-in job, and let the unfinished members be due.

        `due("batches")` returns those that must be cancelled. Batches in it are cancelled too. A
        batch that has finished does not change. None: there is no such batch.
        """

    async def finish_batches(self, limit: int) -> int:
        """Finish complete batches that rows changed by other means left; return how many."""

    async def batch(self, batch_id: str) -> Batch | None:
        """Return a batch; None if there is no such batch."""

    async def batch_statuses(self, batch_ids: Sequence[str]) -> list[BatchStatus | None]:
        """Return each of these batches with the number of its members in each state."""

    async def batches(
        self, where: BatchFilter, *, after: int | None = None, limit: int = 50
    ) -> list[Batch]:
        """Return a page of batches, the newest first; `after` is the row of the last one."""

    async def members(self, batch_id: str, after: int = 0, limit: int = 500) -> list[Member]:
        """Return members of a batch in creation order; `after` is the row of the last one."""
