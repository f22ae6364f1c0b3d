"""The SQLite engine: every verb of the port, handed to the writer thread or to the reader."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from trellis.core.durations import Instant, Micros
from trellis.core.events import Event
from trellis.core.job import Fence, JobId, NewJob, SessionId
from trellis.core.lifecycle import Transition
from trellis.engines.clock import Clock, SystemClock
from trellis.engines.sql import locks, maintenance, reads, sessions, transaction
from trellis.engines.sql.notes import keep_notes
from trellis.engines.sqlite import (
    caller_transaction,
    claim,
    commit,
    export,
    promotion,
    schema,
    storage,
)
from trellis.engines.sqlite.connection import ForkSafe, connect, no_fork
from trellis.engines.sqlite.errors import translate
from trellis.engines.sqlite.health import describe
from trellis.engines.sqlite.reader import Queries, Reader
from trellis.engines.sqlite.transaction import STATEMENTS, Transaction
from trellis.engines.sqlite.wakeup import Wakeup
from trellis.engines.sqlite.writer import Writer
from trellis.engines.values import (
    Activity,
    Capabilities,
    Claimed,
    CommitResult,
    Counts,
    CreateResult,
    Demand,
    Due,
    DueKind,
    GroupBy,
    Health,
    JobFilter,
    KeyStatus,
    Loaded,
    LockHolder,
    LogEntry,
    Migration,
    Note,
    NoteResult,
    Outcome,
    Page,
    QueueSettings,
    Removal,
    Renewed,
    Session,
    SessionLost,
    SessionRecord,
    Topic,
    WorkerInfo,
    check_lock_name,
)
from trellis.errors import EngineClosed

T = TypeVar("T")


def _shared(
    verb: Callable[[transaction.Transaction], Coroutine[Any, Any, T]],
) -> Callable[[Transaction], T]:
    """Return a verb of `engines.sql` as one for the writer thread."""
    return lambda tx: transaction.run_through(verb(tx.shared))


class SqliteEngine:
    """Jobs in one SQLite file."""

    def __init__(
        self, path: str | Path, *, clock: Clock | None = None, create: bool = True
    ) -> None:
        # Resolved, so that every path to the file leads to the same lock file and sockets.
        self._path = Path(path).resolve()
        self._clock: Clock = clock or SystemClock()
        self._create = create
        self._pid = os.getpid()
        self._writer: Writer | None = None
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
            try:
                self._reader = ForkSafe(self._open_reader(), self._open_reader)
            except BaseException:
                connection.close()
                raise
            self._reading = ThreadPoolExecutor(1, "trellis-sqlite-read")
            self._wakeup.open(self._data_version)
            self._writer = Writer(
                self._path, connection, self._reconnect, self._clock, self._wakeup
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

    async def migrate(self, *, dry_run: bool = False) -> Migration:
        """Bring the file's schema up to date; `dry_run` does not create a missing file."""
        with no_fork():
            before = schema.peek_version(self._path) if dry_run else self._migrate()
            scripts = schema.missing(self._path, before)
            return Migration(before, schema.latest_version(), scripts)

    def _migrate(self) -> int:
        schema.refuse_foreign(self._path, create=True)
        connection = connect(self._path, create=self._create)
        try:
            return schema.migrate(connection, self._path)
        finally:
            connection.close()

    async def health(self) -> Health:
        """Report what this engine is, how durable it is, and what is wrong with it."""
        path, reached = self._path, self._wakeup.reaches_others
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

    async def create(self, jobs: Sequence[NewJob]) -> list[CreateResult]:
        """Admit and store new jobs."""
        return await self._write(lambda tx: storage.create_jobs(tx, jobs))

    def create_within(self, connection: object, jobs: Sequence[NewJob]) -> list[CreateResult]:
        """Create inside the caller's transaction: here and now, in the caller's thread."""
        return caller_transaction.create_within(self._path, self._clock, connection, jobs)

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
        busy: int = 0,
    ) -> Renewed | SessionLost:
        """Extend the lease."""
        return await self._write(
            _shared(lambda tx: sessions.renew(tx, session, held, stopped, busy))
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

    async def ask_drain(self, session: SessionId) -> bool:
        """Ask a worker process to finish its jobs and stop."""
        return await self._write(_shared(lambda tx: sessions.ask_drain(tx, session)))

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
        look = _shared(lambda tx: maintenance.due(tx, kind, limit))
        return await self._write(look, look)

    async def promote(self, limit: int) -> int:
        """Make due jobs claimable; end lingering slots and locks."""
        return await self._write(lambda tx: promotion.promote(tx, limit), promotion.peek_promotion)

    async def next_due(self) -> Instant | None:
        """Return when the next waiting job becomes due."""
        return await self._ask(reads.next_due)

    async def prune(self, limit: int) -> int:
        """Remove jobs that retention no longer keeps, and sessions that are long over."""
        return await self._write(
            _shared(lambda tx: maintenance.prune(tx, limit)), promotion.peek_pruning
        )

    async def remove(self, ids: Sequence[JobId]) -> list[Removal]:
        """Remove ended jobs at once."""
        return await self._write(_shared(lambda tx: maintenance.remove(tx, ids)))

    # -- reading -------------------------------------------------------------------------------

    async def load(self, ids: Sequence[JobId]) -> Loaded:
        """Return these jobs."""
        return await self._ask(lambda tx: reads.load(tx, ids))

    async def find(self, where: JobFilter, *, after: int | None = None, limit: int = 50) -> Page:
        """Return a page of matching jobs, newest first."""
        return await self._ask(lambda tx: reads.find(tx, where, after, limit))

    async def count(self, where: JobFilter, *group_by: GroupBy) -> Counts:
        """Count matching jobs per combination of groups."""
        return await self._ask(lambda tx: reads.count(tx, where, group_by))

    async def journal(self, job_id: JobId) -> list[Event]:
        """Return all events of a job."""
        return await self._ask(lambda tx: reads.journal(tx, job_id))

    async def outcomes(self, job_id: JobId) -> list[Outcome]:
        """Return how each generation ended."""
        return await self._ask(lambda tx: reads.outcomes(tx, job_id))

    async def activity(self, job_id: JobId) -> Activity | None:
        """Return what the latest attempt reported."""
        return await self._ask(lambda tx: reads.activity(tx, job_id))

    async def logs(self, job_id: JobId, after: int = 0, limit: int = 1000) -> list[LogEntry]:
        """Return log lines."""
        return await self._ask(lambda tx: reads.logs(tx, job_id, after, limit))

    async def keys(self, service: str, job_type: str) -> list[KeyStatus]:
        """Return every key of a type that is in use."""
        return await self._ask(lambda tx: reads.keys(tx, service, job_type))

    async def queue_settings(self) -> list[QueueSettings]:
        """Return the settings of every queue that has any."""
        return await self._ask(reads.queue_settings)

    async def set_queue(self, settings: QueueSettings) -> None:
        """Pause, drain or reopen a queue."""
        await self._write(_shared(lambda tx: maintenance.set_queue(tx, settings)))

    # -- export --------------------------------------------------------------------------------

    def exporter(self) -> export.SqliteExporter:
        """Return the export of jobs to another store."""
        return export.SqliteExporter(self._path, self._clock)

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

    async def _ask(self, verb: Callable[[Queries], Coroutine[Any, Any, T]]) -> T:
        """Run a verb of `engines.sql.reads`."""
        clock = self._clock
        return await self._read(lambda reader: transaction.run_through(verb(reader.queries(clock))))

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
