"""The PostgreSQL engine: every verb of the port, each on the connection it belongs to.

`hot` claims, creates, keeps sessions and does maintenance; `settle` stores the results of attempts
and sends notifications; `reading` answers queries. Each is opened when first used, so a worker has
two, and its lease thread's engine one. Single statements are one round trip; the rest are
transactions.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import asyncpg

from trellis.core.admission import check_new_job
from trellis.core.durations import SECOND, Instant, Micros
from trellis.core.job import Fence, NewJob, SessionId
from trellis.core.lifecycle import Transition
from trellis.core.names import check_lock_name
from trellis.engines.audit import By
from trellis.engines.capabilities import Capabilities
from trellis.engines.contracts import DeclaredType
from trellis.engines.demand import Demand
from trellis.engines.hints import Hints
from trellis.engines.postgres import (
    caller_transaction,
    commit,
    fast_create,
    gates,
    import_jobs,
    schema,
    storage,
)
from trellis.engines.postgres.claim import Claimer
from trellis.engines.postgres.connection import PINNED, PLAIN, Connection, ServerConnection
from trellis.engines.postgres.export import PostgresExporter
from trellis.engines.postgres.health import describe
from trellis.engines.postgres.notifications import Notifications
from trellis.engines.postgres.projection import PostgresProjection
from trellis.engines.postgres.registry import Registry
from trellis.engines.postgres.statements import fragments
from trellis.engines.postgres.transaction import Queries, Transaction
from trellis.engines.postgres.url import read_address
from trellis.engines.sql import contracts, followups, locks, maintenance, sessions, slots
from trellis.engines.sql.create import Withdrawn
from trellis.engines.sql.filters import Filters
from trellis.engines.sql.notes import keep_notes
from trellis.engines.sql.verbs import Creating, Query, SharedVerbs, Verb
from trellis.engines.values import (
    LOCK_DETAILS,
    Claimed,
    CommitResult,
    CreateResult,
    Due,
    DueKind,
    Health,
    LockHolder,
    Migration,
    Note,
    NoteResult,
    Renewed,
    Session,
    SessionLost,
    SessionRecord,
    Topic,
    WorkerInfo,
    accepted,
)
from trellis.engines.worker_report import NO_REPORT, WorkerReport
from trellis.errors import EngineClosed, Unstorable

T = TypeVar("T")
_READY: Final[tuple[Topic, ...]] = ("ready",)
#: The least limit of a worker's calls, in seconds: the server ends waits for locks before it.
_SHORTEST_LIMIT: Final = 4.0


class PostgresEngine(SharedVerbs):
    """Jobs in a PostgreSQL database."""

    feed_kind = "p"

    def __init__(self, url: str) -> None:
        self._address = address = read_address(url)
        self._registry = Registry()
        self._hints = Hints()
        self._notifications = Notifications(
            address.schema,
            self._hints,
            listens=address.can_listen,
        )
        self._hot = ServerConnection(address, PINNED, self._begin)
        self._settle = ServerConnection(address, PINNED, verb="commit")
        self._reading = ServerConnection(address, PLAIN)
        self._listening = self._hot
        if address.listen is not None:
            past = replace(address, dsn=address.listen, pooler="none", listen=None)
            self._listening = ServerConnection(past, PLAIN, self._notifications.listen)
        self._filters = Filters(fragments(address.schema), numbered=True)
        self._claimer = Claimer(
            self._hot, self._registry, self._promote_due, self._admit, self._withdraw
        )
        self._pid = os.getpid()
        self._is_open = False

    # -- opening and closing -------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""
        return Capabilities(durable=True, processes=True, transactions=True, boot_clock=False)

    async def open(self) -> None:
        """Connect; refuse a database that was not migrated."""
        if self._is_open:
            return
        self._pid = os.getpid()
        for link in self._links:
            link.reopen()
        self._hints.reopen()
        await self._registry.read_lanes(self._hot)
        await self._registry.read_limits(Transaction(self._hot, self._registry))
        self._is_open = True

    async def _begin(self, connection: Connection) -> None:
        """Check that a new connection leads to tables of this version; listen on it."""
        await schema.check_version(connection, self._address)
        if self._listening is self._hot:
            await self._notifications.listen(connection)

    async def close(self) -> None:
        """Close all connections."""
        self._is_open = False
        await self._notifications.close()
        self._hints.close()
        for link in self._links:
            await link.close()

    @property
    def _links(self) -> set[ServerConnection]:
        return {self._hot, self._settle, self._reading, self._listening}

    def _drop_idle(self) -> None:
        for link in self._links:
            link.drop_if_idle()

    async def migrate(self, *, dry_run: bool = False, by: By | None = None) -> Migration:
        """Bring the schema up to date; with `dry_run` change nothing."""
        address = self._address
        async with self._apart() as link:
            if dry_run:
                before = await schema.look(link, address)
            else:
                before = await schema.migrate(link, address, by)
        latest = schema.latest_version(address.schema)
        return Migration(before, latest, schema.missing(address, before))

    def _apart(self) -> caller_transaction.Apart:
        return caller_transaction.Apart(self._address)

    async def health(self) -> Health:
        """Report what this engine is, how durable it is, and what is wrong with it."""
        self._check_open()
        return await describe(
            self._reading, self._address, is_notified=self._notifications.is_received
        )

    async def now(self) -> Instant:
        """Return the engine's time: the server's clock."""
        self._check_open()
        moment: Instant = await self._hot.value("clock")
        return moment

    async def catch_up(self) -> None:
        """Reads see everything that was committed."""

    def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield hints from this and other processes."""
        return self._notifications.watch(topics, self._listening)

    # -- the path of a job ---------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewJob], by: By | None = None) -> list[CreateResult]:
        """Admit and store new jobs."""
        self._check_open()
        page = fast_create.page_of(jobs) if by is None else None
        if page is not None and await self._create_page(page):
            return accepted(page.ids)
        jobs = [check_new_job(new) for new in jobs]
        if not self._registry.knows(jobs):
            await self._registry.enter(self._hot, jobs)
        is_plain = by is None and not any(map(fast_create.needs_look, jobs))
        if is_plain and await self._create_at_once(jobs):
            self._notifications.publish(_READY, self._settle)
            return accepted([new.id for new in jobs])
        return await self._create_carefully(jobs, by)

    async def _create_page(self, page: fast_create.Page) -> bool:
        """Store jobs without options; return False if one of them needs the general path."""
        fast_create.check(page)
        if not self._registry.knows(page.kinds):
            await self._registry.enter(self._hot, page.kinds)
        columns = fast_create.columns(page, self._registry)
        if columns is None:
            return False
        channel = self._notifications.channel_for("ready")
        if await self._store("create_bare", *columns, channel) != len(page.ids):
            return False
        if channel is None:
            self._notifications.publish(_READY, self._settle)
        else:
            self._hints.publish(_READY)
        return True

    async def _create_at_once(self, jobs: Sequence[NewJob]) -> bool:
        """Store jobs that need no look at others in one statement; False if that did not do."""
        columns = storage.job_columns(jobs, self._registry)
        return bool(await self._store("create", *columns, "waiting_for_slot", True, []))

    async def _store(self, name: str, *values: object) -> int:
        """Run a statement that stores new jobs; return how many, none if an id is there already."""
        try:
            return int(await self._hot.value(name, *values))
        except Unstorable as error:
            if isinstance(error.__cause__, asyncpg.UniqueViolationError):
                return 0
            raise

    async def _create_carefully(self, jobs: Sequence[NewJob], by: By | None) -> list[CreateResult]:
        while True:
            try:
                return await self._within(lambda tx: gates.create_jobs(tx, jobs, by), "create")
            except Withdrawn as refused:
                return refused.results
            except Unstorable as error:
                # Another process has stored one of the ids since: look again.
                if not isinstance(error.__cause__, asyncpg.UniqueViolationError):
                    raise
            except storage.UnknownNumbers as unknown:
                await self._registry.enter_numbers(self._hot, unknown.jobs)

    def create_within(
        self, connection: object, jobs: Sequence[NewJob]
    ) -> list[CreateResult] | Awaitable[list[CreateResult]]:
        """Create inside the caller's transaction, on the caller's connection."""
        return caller_transaction.create_within(self._address, connection, jobs)

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Take due jobs."""
        self._check_open()
        return await self._claimer.claim(session, demands, limit)

    async def _promote_due(self, lanes: Sequence[int], limit: int) -> None:
        await self._within(lambda tx: _promote_due(tx, lanes, limit), "maintenance")

    async def _admit(self, _lanes: Sequence[int], limit: int) -> None:
        await self._within(lambda tx: slots.admit_callers_jobs(tx, limit), "maintenance")

    async def _withdraw(self, keys: Collection[str]) -> None:
        await self._within(lambda tx: slots.withdraw(tx, keys), "maintenance")

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        """Store decisions, guarded by version and fence."""
        self._check_open()
        results, topics = await commit.commit_batch(self._settle, self._registry, transitions)
        if self._registry.limits and any(map(self._registry.frees, transitions)):
            topics.add("ready")
        self._notifications.publish(topics, self._settle)
        return results

    async def note(self, notes: Sequence[Note]) -> list[NoteResult]:
        """Keep notes whose fence holds."""
        return await self._within(lambda tx: keep_notes(tx, notes), "notes")

    # -- sessions ------------------------------------------------------------------------------

    async def open_session(self, info: WorkerInfo, lease: Micros) -> Session:
        """Start a session; no call of a worker waits longer than half of its lease from now on."""
        for link in () if info.details == LOCK_DETAILS else self._links:
            link.limit_calls(max(lease / SECOND / 2, _SHORTEST_LIMIT))
            link.on_silence = self._drop_idle
        return await sessions.open_session(self._on(self._hot), info, lease)

    async def renew(
        self,
        session: SessionId,
        held: Sequence[Fence],
        stopped: Sequence[Fence] = (),
        report: WorkerReport = NO_REPORT,
    ) -> Renewed | SessionLost:
        """Extend the lease."""
        return await self._within(
            lambda tx: sessions.renew(tx, session, held, stopped, report), "sessions"
        )

    async def close_session(self, session: SessionId) -> None:
        """End a session gracefully."""
        await self._within(lambda tx: sessions.close_session(tx, session), "sessions")

    async def reap(self, session: SessionId) -> bool:
        """End a session whose lease is over."""
        return await self._within(lambda tx: sessions.reap(tx, session), "sessions")

    async def sessions(self) -> list[SessionRecord]:
        """List sessions, the newest first."""
        return await sessions.list_sessions(self._on(self._reading))

    # -- locks ---------------------------------------------------------------------------------

    async def take_lock(self, name: str, session: SessionId, token: int = 0) -> LockHolder | None:
        """Take a lock that is free or held by this attempt; otherwise return its holder."""
        check_lock_name(name)
        held = await locks.find_lock(self._on(self._hot), name)
        if held is not None:  # enough for all workers but the one that leads maintenance
            return None if held.is_of(session, token) else held.holder
        return await self._within(lambda tx: locks.take_lock(tx, name, session, token), "locks")

    async def free_lock(self, name: str, session: SessionId, token: int = 0) -> bool:
        """Release a lock."""
        return await locks.free_lock(self._on(self._hot), name, session, token)

    async def locks(self) -> list[LockHolder]:
        """List the locks that are held now."""
        return await locks.list_locks(self._on(self._reading))

    # -- maintenance ---------------------------------------------------------------------------

    async def due(self, kind: DueKind, limit: int) -> Due:
        """Return what maintenance must look at."""
        return await self._within(lambda tx: maintenance.due(tx, kind, limit))

    async def promote(self, limit: int) -> int:
        """Make due jobs claimable; end lingering slots and locks."""
        self._check_open()
        await self._registry.read_lanes(self._hot)
        lanes = list(self._registry.lanes)
        # Each in its own transaction, because a transaction locks keys only once, in one order.
        moved = await self._within(lambda tx: maintenance.promote(tx, lanes, limit), "maintenance")
        moved += await self._within(lambda tx: slots.wake_rated(tx, limit), "maintenance")
        await self._admit(lanes, limit)
        moved += await self._work_off()
        return moved + await self._within(maintenance.end_lingering, "maintenance")

    async def _work_off(self) -> int:
        """Judge jobs that wait for others and that earlier transactions have left."""
        while True:
            try:
                return await self._within(
                    lambda tx: followups.work_off(tx, storage.PostgresStorage(tx)), "dependencies"
                )
            except storage.UnknownNumbers as unknown:
                await self._registry.enter_numbers(self._hot, unknown.jobs)

    async def prune(self, limit: int) -> int:
        """Remove jobs that retention no longer keeps, and sessions that are long over."""
        return await self._within(lambda tx: maintenance.prune(tx, limit), "maintenance")

    async def declare_types(self, types: Sequence[DeclaredType]) -> None:
        """Store what workers declare about job types."""
        self._check_open()
        await self._registry.enter_policies(self._hot, {each.policy for each in types})
        number_of = self._registry.policy_numbers.__getitem__
        await self._within(lambda tx: contracts.declare_types(tx, types, number_of), "contracts")

    # -- transfer ------------------------------------------------------------------------------

    def exporter(self) -> PostgresExporter:
        """Return the export of jobs to another store."""
        return PostgresExporter(self._within, self._hot)

    def importer(self) -> import_jobs.PostgresImporter:
        """Return the import of jobs from another store."""
        return import_jobs.PostgresImporter(self._within, self._hot, self._registry)

    def projection(self) -> PostgresProjection:
        """Return the write side of a projection of another store in this database."""
        return PostgresProjection(self._within, self.run_read, self._hot, self._registry)

    # -- transactions --------------------------------------------------------------------------

    async def run_write(self, verb: Verb[T], file: str) -> T:
        """Run a verb in a transaction."""
        return await self._within(verb, file)

    async def run_create(self, verb: Creating[T], jobs: Sequence[NewJob], file: str) -> T:
        """Run a verb in a transaction that has passed the gates of these jobs."""
        self._check_open()
        await self._registry.enter(self._hot, jobs)

        async def work(tx: Transaction) -> T:
            await gates.pass_gates(tx, jobs)
            return await verb(tx, storage.PostgresStorage(tx))

        while True:
            try:
                return await self._within(work, file)
            except storage.UnknownNumbers as unknown:
                await self._registry.enter_numbers(self._hot, unknown.jobs)

    async def run_read(self, verb: Query[T]) -> T:
        """Run a verb on the connection for people's queries."""
        return await verb(self._on(self._reading))

    async def run_work(self, verb: Query[T]) -> T:
        """Run a verb on the connection that a worker has already."""
        return await verb(self._on(self._hot))

    def _on(self, link: ServerConnection) -> Queries:
        """Return a transaction in which each statement is committed alone."""
        self._check_open()
        return Queries(link, self._registry, self._filters)

    async def _within(self, verb: Callable[[Transaction], Awaitable[T]], name: str = "") -> T:
        """Run a verb in a transaction; then publish its topics."""
        self._check_open()
        async with self._hot.transaction(name) as connection:
            tx = Transaction(connection, self._registry)
            result = await verb(tx)
        if tx.topics:
            self._notifications.publish(tx.topics, self._settle)
        return result

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise EngineClosed(
                "This engine was opened before a fork. Open a new one in each process."
            )
        if not self._is_open:
            raise EngineClosed("The engine is closed. Open it again before using it.")


async def _promote_due(tx: Transaction, lanes: Sequence[int], limit: int) -> int:
    await tx.read_clock()
    return await maintenance.promote_due(tx, lanes, limit)
