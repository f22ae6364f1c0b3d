"""Verbs of the port that every SQL engine runs in the same way, over its own connections.

An engine says how a verb runs: `run_write` in a transaction, `run_read` among the reads of people,
`run_work` among the reads of workers, which may use no connection of their own. Verbs that each
engine writes in its own way (claim, create, commit, sessions, locks) are in its `engine.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from trellis.core.batches import Batch, NewBatch
from trellis.core.dependencies import Link
from trellis.core.durations import Instant, Micros
from trellis.core.events import Event
from trellis.core.job import JobId, JobRecord, NewJob, SessionId
from trellis.core.limits import Limit, LimitChange, LimitSetting, Scope
from trellis.core.schedules import Schedule, Step
from trellis.engines.archive import Archived, ArchiveState
from trellis.engines.audit import OPERATOR, AuditEntry, AuditFilter, By, Change
from trellis.engines.batches import BatchFilter, BatchStatus, Member
from trellis.engines.contracts import (
    KEPT_CONTRACTS,
    ContractRecord,
    DeclaredType,
    NewContract,
)
from trellis.engines.feed import Changes, Expired
from trellis.engines.limits import LimitStatus, Names
from trellis.engines.operating import (
    RATE_EVENTS,
    Drain,
    DrainChange,
    JobFacts,
    Rates,
    WorkerName,
)
from trellis.engines.schedules import DueSchedules, SlotRecord
from trellis.engines.sql import (
    archive,
    audit,
    batches,
    contracts,
    dependencies,
    fairness,
    feed,
    limits,
    maintenance,
    operating,
    reads,
    schedules,
    sessions,
)
from trellis.engines.sql import tokens as token_rows
from trellis.engines.sql.transaction import Storage, Transaction
from trellis.engines.tokens import NewToken, TokenRecord
from trellis.engines.values import (
    Activity,
    Counts,
    CreateResult,
    GroupBy,
    ItemEntry,
    JobFilter,
    KeyStatus,
    Loaded,
    LogEntry,
    Outcome,
    Page,
    QueueSettings,
    Removal,
)

T = TypeVar("T")
Verb: TypeAlias = Callable[[Transaction], Coroutine[Any, Any, T]]
Creating: TypeAlias = Callable[[Transaction, Storage], Coroutine[Any, Any, T]]
Query: TypeAlias = Callable[[reads.Queries], Coroutine[Any, Any, T]]


class SharedVerbs(Protocol):
    """The part of an SQL engine that is the same for all of them."""

    #: The letter of this engine's cursors.
    feed_kind: ClassVar[str]

    async def run_write(self, verb: Verb[T], file: str) -> T:
        """Run a verb in a transaction; most of its statements are in this file."""

    async def run_create(self, verb: Creating[T], jobs: Sequence[NewJob], file: str) -> T:
        """Run a verb in a transaction that may create these jobs."""

    async def run_read(self, verb: Query[T]) -> T:
        """Run a verb that changes nothing, for people."""

    async def run_work(self, verb: Query[T]) -> T:
        """Run a verb that changes nothing, for a worker."""

    # -- changes -------------------------------------------------------------------------------

    async def remove(self, ids: Sequence[JobId], by: By = OPERATOR) -> list[Removal]:
        """Remove ended jobs at once."""
        return await self.run_write(lambda tx: maintenance.remove(tx, ids, by), "maintenance")

    async def set_queue(self, settings: QueueSettings, by: By = OPERATOR) -> None:
        """Pause, drain or reopen a queue."""
        await self.run_write(lambda tx: maintenance.set_queue(tx, settings, by), "queues")

    async def ask_drain(self, session: SessionId, by: By = OPERATOR) -> bool:
        """Ask a worker process to finish its jobs and stop."""
        return await self.run_write(lambda tx: sessions.ask_drain(tx, session, by), "sessions")

    async def set_drain(self, drain: Drain) -> None:
        """Accept no new job in any queue, or accept them again."""
        await self.run_write(lambda tx: operating.set_drain(tx, drain), "queues")

    async def add_schedules(self, added: Sequence[Schedule]) -> list[bool]:
        """Store new schedules."""
        return await self.run_write(lambda tx: schedules.add_schedules(tx, added), "schedules")

    async def advance_schedule(
        self, step: Step, change: Change | None = None, by: By = OPERATOR
    ) -> list[SlotRecord] | None:
        """Store a step of a schedule: its jobs, its entries of the ledger, the schedule."""
        return await self.run_create(
            lambda tx, storage: schedules.advance_schedule(tx, storage, step, change, by),
            [new for _, new in step.jobs],
            "schedules",
        )

    async def run_schedule(self, schedule: Schedule, new: NewJob, by: By) -> CreateResult | None:
        """Create a job of a schedule outside of its slots."""
        return await self.run_create(
            lambda tx, storage: schedules.run_schedule(tx, storage, schedule, new, by),
            [new],
            "schedules",
        )

    async def declare_limits(self, declared: Sequence[tuple[Scope, Limit]]) -> None:
        """Store the limits that the code declares."""
        await self.run_write(lambda tx: limits.declare_limits(tx, declared), "limits")

    async def change_limit(self, scope: Scope, change: LimitChange, by: By) -> LimitSetting:
        """Set parts of a limit, or let the declared one count again."""
        return await self.run_write(lambda tx: limits.change_limit(tx, scope, change, by), "limits")

    async def open_batch(self, new: NewBatch) -> Batch | None:
        """Open a batch."""
        return await self.run_write(lambda tx: batches.open_batch(tx, new), "batches")

    async def seal_batch(self, batch_id: str, by: By | None = None) -> Batch | None:
        """Let a batch finish once its members have."""
        return await self.run_create(
            lambda tx, storage: batches.seal_batch(tx, storage, batch_id, by), (), "batches"
        )

    async def cancel_batch(self, batch_id: str, by: By) -> Batch | None:
        """Take no more members, and have the unfinished ones cancelled."""
        return await self.run_create(
            lambda tx, storage: batches.cancel_batch(tx, storage, batch_id, by), (), "batches"
        )

    async def finish_batches(self, limit: int) -> int:
        """Finish batches that are complete and were left behind; take no lock if there are none."""
        if not await self.run_work(lambda tx: batches.complete(tx, 1)):
            return 0
        return await self.run_create(
            lambda tx, storage: batches.finish_batches(tx, storage, limit), (), "batches"
        )

    async def set_aging(self, aging: Micros | None, by: By) -> None:
        """Let waiting jobs age, or not."""
        await self.run_write(lambda tx: fairness.set_aging(tx, aging, by), "queues")

    async def put_contract(self, new: NewContract, by: By = OPERATOR) -> ContractRecord | None:
        """Store a contract as the next of its service; None if there is another next one."""
        return await self.run_write(lambda tx: contracts.put(tx, new, by), "contracts")

    async def put_token(self, new: NewToken, by: By = OPERATOR) -> TokenRecord:
        """Store a token."""
        return await self.run_write(lambda tx: token_rows.put(tx, new, by), "tokens")

    async def revoke_token(self, token_id: str, by: By = OPERATOR) -> TokenRecord | None:
        """End a token at once."""
        return await self.run_write(lambda tx: token_rows.revoke(tx, token_id, by), "tokens")

    async def prune_audit(self, keep: Micros, limit: int) -> int:
        """Remove the oldest entries of the audit; take no lock if there are none."""
        if not await self.run_work(lambda tx: audit.has_older(tx, keep)):
            return 0
        return await self.run_write(lambda tx: audit.prune(tx, keep, limit), "maintenance")

    async def declare_archive(self, service: str, by: By) -> bool:
        """Switch the archive of a service on if it was never switched."""
        return await self.run_write(
            lambda tx: archive.declare_archive(tx, service, by), "maintenance"
        )

    async def set_archive(self, service: str, *, on: bool, by: By = OPERATOR) -> bool:
        """Switch the archive of a service."""
        return await self.run_write(
            lambda tx: archive.set_archive(tx, service, on, by), "maintenance"
        )

    async def note_archive(self, service: str, error: str | None) -> None:
        """Record that the archiver of a service failed, or that it works."""
        await self.run_write(lambda tx: archive.note_archive(tx, service, error), "maintenance")

    async def archivable(self, service: str, limit: int) -> list[JobRecord]:
        """Return the next expired jobs of a service."""
        return await self.run_write(
            lambda tx: archive.archivable(tx, service, limit), "maintenance"
        )

    async def remove_archived(self, archived: Sequence[Archived]) -> int:
        """Remove the jobs that are still as they were archived."""
        return await self.run_write(
            lambda tx: maintenance.remove_archived(tx, archived), "maintenance"
        )

    async def archives(self) -> list[ArchiveState]:
        """Return the archives of all services."""
        return await self.run_read(archive.archives)

    # -- reads of workers ----------------------------------------------------------------------

    async def next_due(self) -> Instant | None:
        """Return when the next waiting job becomes due."""
        return await self.run_work(reads.next_due)

    async def schedules(self, services: Sequence[str] = ()) -> list[Schedule]:
        """Return the schedules of these services, or of all."""
        return await self.run_work(lambda tx: schedules.schedules(tx, services))

    async def due_schedules(self, limit: int) -> DueSchedules:
        """Return the schedules with a due slot."""
        return await self.run_work(lambda tx: schedules.due_schedules(tx, limit))

    async def load(self, ids: Sequence[JobId]) -> Loaded:
        """Return these jobs."""
        return await self.run_work(lambda tx: reads.load(tx, ids))

    async def journal(self, job_id: JobId) -> list[Event]:
        """Return all events of a job."""
        return await self.run_work(lambda tx: reads.journal(tx, job_id))

    async def outcomes(self, job_id: JobId) -> list[Outcome]:
        """Return how each generation ended."""
        return await self.run_work(lambda tx: reads.outcomes(tx, job_id))

    async def activity(self, job_id: JobId) -> Activity | None:
        """Return what the latest attempt reported."""
        return await self.run_work(lambda tx: reads.activity(tx, job_id))

    async def links(self, ids: Sequence[JobId], limit: int = 1000) -> list[Link]:
        """Return which jobs these wait for, and which wait for them."""
        return await self.run_work(lambda tx: dependencies.links(tx, ids, limit))

    async def items(self, job_id: JobId) -> list[ItemEntry]:
        """Return the items of all attempts of a job."""
        return await self.run_work(lambda tx: reads.items(tx, job_id))

    async def ahead(self, job_id: JobId, types: Sequence[str], limit: int) -> dict[Names, int]:
        """Count the claimable jobs of these types that a claim takes before this one."""
        return await self.run_work(lambda tx: reads.ahead(tx, job_id, types, limit))

    async def logs(self, job_id: JobId, after: int = 0, limit: int = 1000) -> list[LogEntry]:
        """Return log lines."""
        return await self.run_work(lambda tx: reads.logs(tx, job_id, after, limit))

    async def facts(self, ids: Sequence[JobId]) -> dict[JobId, JobFacts]:
        """Return facts about these jobs."""
        return await self.run_work(lambda tx: operating.facts(tx, ids))

    async def identify(self, sessions: Sequence[SessionId]) -> dict[SessionId, WorkerName]:
        """Return the worker processes of sessions."""
        return await self.run_work(lambda tx: operating.identify(tx, sessions))

    async def batch(self, batch_id: str) -> Batch | None:
        """Return a batch."""
        return await self.run_work(lambda tx: batches.load(tx, batch_id))

    async def batch_statuses(self, batch_ids: Sequence[str]) -> list[BatchStatus | None]:
        """Return these batches with the number of their members in each state."""
        return await self.run_work(lambda tx: batches.batch_statuses(tx, batch_ids))

    async def members(self, batch_id: str, after: int = 0, limit: int = 500) -> list[Member]:
        """Return members of a batch."""
        return await self.run_work(lambda tx: batches.members(tx, batch_id, after, limit))

    async def contracts(
        self, service: str | None = None, limit: int = KEPT_CONTRACTS
    ) -> list[ContractRecord]:
        """Return stored contracts, by service, the latest first."""
        return await self.run_work(lambda tx: contracts.contracts(tx, service, limit))

    async def token(self, token_id: str) -> TokenRecord | None:
        """Return a token by its id."""
        return await self.run_work(lambda tx: token_rows.find(tx, token_id))

    # -- reads of people -----------------------------------------------------------------------

    async def tokens(self) -> list[TokenRecord]:
        """Return all tokens, the newest first."""
        return await self.run_read(token_rows.tokens)

    async def declared_types(self) -> list[DeclaredType]:
        """Return what is declared about job types."""
        return await self.run_read(contracts.declared_types)

    async def find(self, where: JobFilter, *, after: int | None = None, limit: int = 50) -> Page:
        """Return a page of matching jobs, newest first."""
        return await self.run_read(lambda tx: reads.find(tx, where, after, limit))

    async def count(self, where: JobFilter, *group_by: GroupBy) -> Counts:
        """Count matching jobs per combination of groups."""
        return await self.run_read(lambda tx: reads.count(tx, where, group_by))

    async def keys(self, service: str, job_type: str) -> list[KeyStatus]:
        """Return every key of a type that is in use."""
        return await self.run_read(lambda tx: reads.keys(tx, service, job_type))

    async def queue_settings(self) -> list[QueueSettings]:
        """Return the settings of every queue that has any."""
        return await self.run_read(reads.queue_settings)

    async def slots(
        self, service: str, name: str, *, before: Instant | None = None, limit: int = 50
    ) -> list[SlotRecord]:
        """Return a part of the ledger of a schedule, the latest slots first."""
        return await self.run_read(lambda tx: schedules.slots(tx, service, name, before, limit))

    async def limits(self) -> list[LimitStatus]:
        """Return all limits."""
        return await self.run_read(limits.list_limits)

    async def aging(self) -> Micros | None:
        """Return the span of aging."""
        return await self.run_read(fairness.aging)

    async def rates(self, limit: int = RATE_EVENTS) -> Rates:
        """Return what has happened recently."""
        return await self.run_read(lambda tx: operating.rates(tx, limit))

    async def drain_changes(self, limit: int = 20) -> list[DrainChange]:
        """Return what `set_drain` changed, the latest first."""
        return await self.run_read(lambda tx: operating.drain_changes(tx, limit))

    async def batches(
        self, where: BatchFilter, *, after: int | None = None, limit: int = 50
    ) -> list[Batch]:
        """Return a page of batches, the newest first."""
        return await self.run_read(lambda tx: batches.list_batches(tx, where, after, limit))

    async def audit(
        self, where: AuditFilter, *, after: int | None = None, limit: int = 50
    ) -> list[AuditEntry]:
        """Return a page of the audit, the latest first."""
        return await self.run_read(lambda tx: audit.entries(tx, where, after, limit))

    async def changes(self, after: str | None = None, limit: int = 1000) -> Changes | Expired:
        """Return a page of the feed."""
        return await self.run_read(lambda tx: feed.changes(tx, self.feed_kind, after, limit))
