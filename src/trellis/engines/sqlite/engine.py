"""The SQLite engine: every verb of the port, handed to the writer thread or to the reader."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trellis.core.durations import Instant, Micros
from trellis.core.job import Fence, NewJob, SessionId
from trellis.core.lifecycle import Transition
from trellis.core.names import check_lock_name
from trellis.engines.audit import By, migration_of
from trellis.engines.capabilities import Capabilities
from trellis.engines.clock import Clock, SystemClock
from trellis.engines.contracts import DeclaredType
from trellis.engines.demand import Demand
from trellis.engines.sql import audit, contracts, locks, maintenance, sessions, transaction
from trellis.engines.sql.create import Withdrawn
from trellis.engines.sql.notes import keep_notes
from trellis.engines.sql.rows import Row
from trellis.engines.sql.verbs import Creating, Query, SharedVerbs, Verb
from trellis.engines.sqlite import (
    caller_transaction,
    claim,
    commit,
    export,
    promotion,
    schema,
    storage,
)
from trellis.engines.sqlite.connection import ForkSafe, OpenedFile, connect, no_fork
from trellis.engines.sqlite.errors import translate
from trellis.engines.sqlite.health import describe
from trellis.engines.sqlite.import_jobs import SqliteImporter
from trellis.engines.sqlite.projection import SqliteProjection
from trellis.engines.sqlite.reader import Reader
from trellis.engines.sqlite.transaction import STATEMENTS, Transaction
from trellis.engines.sqlite.wakeup import Wakeup
from trellis.engines.sqlite.writer import Writer
from trellis.engines.values import (
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
)
from trellis.engines.worker_report import NO_REPORT, WorkerReport
from trellis.errors import EngineClosed

T = TypeVar("T")


def _shared(
    verb: Callable[[transaction.Transaction], Coroutine[Any, Any, T]],
) -> Callable[[Transaction], T]:
    """Return a verb of `engines.sql` as one for the writer thread."""
    return lambda tx: transaction.run_through(verb(tx.shared))


class SqliteEngine(SharedVerbs):
    """Jobs in one SQLite file."""

    feed_kind = "s"

    def __init__(
        self, path: str | Path, *, clock: Clock | None = None, create: bool = True
    ) -> None:
        # Resolved, so that every path to the file leads to the same lock file and sockets.
        self._path = Path(path).resolve()
        self._clock: Clock = clock or SystemClock()
        self._create = create
        self._pid = os.getpid()
        self._writer: Writer | None = None
        #: None before it was opened.
        self._file: OpenedFile | None = None
        self._reader: ForkSafe[Reader] | None = None
        self._reading: ThreadPoolExecutor | None = None
        self._wakeup = Wakeup(self._path)

    # -- opening and closing -------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""
        return Capabilities(durable=True, processes=True, transactions=True, one_writer=True)

    async def open(self) -> None:
        """Open the file; create and migrate it if it may be created."""
        if self._writer is not None:
            return
        self._pid = os.getpid()
        with no_fork():
            connection = self._first_connection()
            self._file = OpenedFile(self._path)
            try:
                self._reader = ForkSafe(self._open_reader(), self._open_reader)
            except BaseException:
                connection.close()
                raise
            self._reading = ThreadPoolExecutor(1, "trellis-sqlite-read")
            self._wakeup.open(self._data_version)
            self._writer = Writer(
                self._file, connection, self._reconnect, self._clock, self._wakeup
            )

    def _first_connection(self) -> sqlite3.Connection:
        schema.refuse_foreign(self._path, create=self._create)
        connection = connect(self._path, create=self._create)
        try:
            if self._create:
                schema.migrate(connection, self._path)
            else:
                schema.check_version(connection, self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _reconnect(self) -> sqlite3.Connection:
        self._check_file()
        return connect(self._path, create=False)

    def _open_reader(self) -> Reader:
        return Reader(self._reconnect())

    async def close(self) -> None:
        """Finish the waiting calls and close the file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()
        # Only now: the last commit must still wake others.
        self._wakeup.close()
        if self._reading is not None:
            self._reading.shutdown()
            self._reading = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._file = None

    async def migrate(self, *, dry_run: bool = False, by: By | None = None) -> Migration:
        """Bring the file's schema up to date; `dry_run` does not create a missing file."""
        with no_fork():
            before = schema.peek_version(self._path) if dry_run else self._migrate(by)
            scripts = schema.missing(self._path, before)
            return Migration(before, schema.latest_version(), scripts)

    def _migrate(self, by: By | None) -> int:
        schema.refuse_foreign(self._path, create=True)
        connection = connect(self._path, create=self._create)
        try:
            return schema.migrate(connection, self._path, by and self._migration_entry(by))
        finally:
            connection.close()

    def _migration_entry(self, by: By) -> Callable[[int], Row]:
        latest = schema.latest_version()
        return lambda before: audit.row_of(self._clock.now(), migration_of(before, latest), by)

    async def health(self) -> Health:
        """Report what this engine is, how durable it is, and what is wrong with it."""
        path, reached = self._path, self._wakeup.reaches_others
        self._check_file()
        return await self._read(
            lambda reader: describe(reader.connection, path, wakes_others=reached)
        )

    async def now(self) -> Instant:
        """Return the engine's time: this machine's clock."""
        return self._clock.now()

    async def catch_up(self) -> None:
        """Reads see everything that was committed."""

    def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield hints from this and other processes."""
        return self._wakeup.watch(topics)

    # -- the path of a job ---------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewJob], by: By | None = None) -> list[CreateResult]:
        """Admit and store new jobs."""
        try:
            return await self._write(lambda tx: storage.create_jobs(tx, jobs, by))
        except Withdrawn as refused:
            return refused.results

    def create_within(self, connection: object, jobs: Sequence[NewJob]) -> list[CreateResult]:
        """Create inside the caller's transaction: here and now, in the caller's thread."""
        self._check_file()
        try:
            return caller_transaction.create_within(self._path, self._clock, connection, jobs)
        except Withdrawn as refused:
            return refused.results

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Take due jobs."""
        raw = await self._write(
            lambda tx: claim.claim(tx, session, demands, limit),
            lambda tx: claim.peek(tx, session, demands),
        )
        return claim.build(raw)

    async def commit(self, transitions: Sequence[Transition]) -> list[CommitResult]:
        """Store decisions, guarded by version and fence."""
        batch = commit.prepare(transitions)
        return await self._write(lambda tx: commit.commit_batch(tx, batch))

    async def note(self, notes: Sequence[Note]) -> list[NoteResult]:
        """Keep notes whose fence holds."""
        return await self._write(_shared(lambda tx: keep_notes(tx, notes)))

    # -- sessions ------------------------------------------------------------------------------

    async def open_session(self, info: WorkerInfo, lease: Micros) -> Session:
        """Start a session."""
        return await self._write(_shared(lambda tx: sessions.open_session(tx, info, lease)))

    async def renew(
        self,
        session: SessionId,
        held: Sequence[Fence],
        stopped: Sequence[Fence] = (),
        report: WorkerReport = NO_REPORT,
    ) -> Renewed | SessionLost:
        """Extend the lease."""
        return await self._write(
            _shared(lambda tx: sessions.renew(tx, session, held, stopped, report))
        )

    async def close_session(self, session: SessionId) -> None:
        """End a session gracefully."""
        await self._write(_shared(lambda tx: sessions.close_session(tx, session)))

    async def reap(self, session: SessionId) -> bool:
        """End a session whose lease is over."""
        return await self._write(_shared(lambda tx: sessions.reap(tx, session)))

    async def sessions(self) -> list[SessionRecord]:
        """List sessions, the newest first."""
        return await self._write(_shared(sessions.list_sessions), _shared(sessions.list_sessions))

    # -- locks ---------------------------------------------------------------------------------

    async def take_lock(self, name: str, session: SessionId, token: int = 0) -> LockHolder | None:
        """Take a lock that is free or held by this attempt; otherwise return its holder."""
        check_lock_name(name)
        return await self._write(
            _shared(lambda tx: locks.take_lock(tx, name, session, token)),
            _shared(lambda tx: locks.other_holder(tx, name, session, token)),
        )

    async def free_lock(self, name: str, session: SessionId, token: int = 0) -> bool:
        """Release a lock."""
        return await self._write(_shared(lambda tx: locks.free_lock(tx, name, session, token)))

    async def locks(self) -> list[LockHolder]:
        """List the locks that are held now."""
        return await self._write(_shared(locks.list_locks), _shared(locks.list_locks))

    # -- maintenance ---------------------------------------------------------------------------

    async def due(self, kind: DueKind, limit: int) -> Due:
        """Return what maintenance must look at."""
        return await self.run_read(lambda tx: maintenance.due(tx, kind, limit))

    async def promote(self, limit: int) -> int:
        """Make due jobs claimable; end lingering slots and locks."""
        return await self._write(lambda tx: promotion.promote(tx, limit), promotion.peek_promotion)

    async def prune(self, limit: int) -> int:
        """Remove jobs that retention no longer keeps, and sessions that are long over."""
        return await self._write(
            _shared(lambda tx: maintenance.prune(tx, limit)), promotion.peek_pruning
        )

    async def declare_types(self, types: Sequence[DeclaredType]) -> None:
        """Store what workers declare about job types."""

        def declare(tx: Transaction) -> None:
            number_of = partial(tx.registry.policy_number, tx)
            transaction.run_through(contracts.declare_types(tx.shared, types, number_of))

        await self._write(declare)

    # -- transfer ------------------------------------------------------------------------------

    def exporter(self) -> export.SqliteExporter:
        """Return the export of jobs to another store."""
        return export.SqliteExporter(self._path, self._clock)

    def importer(self) -> SqliteImporter:
        """Return the import of jobs from another store."""
        return SqliteImporter(self._write)

    def projection(self) -> SqliteProjection:
        """Return the write side of a projection of another store in this file."""
        return SqliteProjection(self._write, self.run_read)

    # -- writer and reader ---------------------------------------------------------------------

    async def _write(
        self,
        verb: Callable[[Transaction], T],
        peek: Callable[[Transaction], T | None] | None = None,
    ) -> T:
        self._check_open()
        if self._writer is None:
            raise EngineClosed("The engine is closed. Open it again before using it.")
        return await self._writer.call(verb, peek)

    async def run_write(self, verb: Verb[T], file: str) -> T:  # noqa: ARG002 - for PostgreSQL
        """Run a verb on the writer thread."""
        return await self._write(_shared(verb))

    async def run_create(
        self,
        verb: Creating[T],
        jobs: Sequence[NewJob],  # noqa: ARG002 - for PostgreSQL
        file: str,  # noqa: ARG002
    ) -> T:
        """Run a verb that creates jobs on the writer thread."""
        return await self._write(
            lambda tx: transaction.run_through(verb(tx.shared, storage.SqliteStorage(tx)))
        )

    async def run_read(self, verb: Query[T]) -> T:
        """Run a verb that changes nothing."""
        self._check_file()
        clock = self._clock
        return await self._read(lambda reader: transaction.run_through(verb(reader.queries(clock))))

    async def run_work(self, verb: Query[T]) -> T:
        """Run a verb that changes nothing."""
        return await self.run_read(verb)

    async def _read(self, query: Callable[[Reader], T]) -> T:
        self._check_open()
        access, pool = self._reader, self._reading
        if access is None or pool is None:
            raise EngineClosed("The engine is closed. Open it again before using it.")

        def run() -> T:
            try:
                with access.use() as reader:
                    return query(reader)
            except sqlite3.Error as error:
                raise translate(error, self._path) from error

        return await asyncio.get_running_loop().run_in_executor(pool, run)

    def _check_file(self) -> None:
        if self._file is not None:
            self._file.check()

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise EngineClosed(
                "This engine was opened before a fork. Open a new one in each process."
            )

    async def _data_version(self) -> int:
        def ask(reader: Reader) -> int:
            row = reader.connection.execute(STATEMENTS["data_version"]).fetchone()
            return int(row[0])

        return await self._read(ask)
