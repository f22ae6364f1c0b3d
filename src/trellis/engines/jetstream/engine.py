"""The JetStream engine: every verb of the port, put together from its parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from trellis.core.admission import check_new_job
from trellis.core.dependencies import Link
from trellis.core.durations import Instant
from trellis.core.job import Fence, JobId, NewJob, SessionId
from trellis.engines.audit import By
from trellis.engines.capabilities import Capabilities
from trellis.engines.clock import Clock
from trellis.engines.hints import Hints
from trellis.engines.jetstream import keys, topology
from trellis.engines.jetstream.archive import ArchiveQueue
from trellis.engines.jetstream.audit import AuditVerbs
from trellis.engines.jetstream.batches import BatchTable
from trellis.engines.jetstream.claim import ClaimVerb
from trellis.engines.jetstream.commit import Seen
from trellis.engines.jetstream.contracts import ContractVerbs
from trellis.engines.jetstream.create import CreateVerb
from trellis.engines.jetstream.dependencies import Dependencies
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.followups import Followups
from trellis.engines.jetstream.health import describe
from trellis.engines.jetstream.hints import Listener
from trellis.engines.jetstream.import_jobs import JetStreamImporter
from trellis.engines.jetstream.lanes import Lanes
from trellis.engines.jetstream.limits import LimitTable, LimitVerbs
from trellis.engines.jetstream.line import may_change, may_move
from trellis.engines.jetstream.link import Link as Connection
from trellis.engines.jetstream.locks import LockTable, LockVerbs
from trellis.engines.jetstream.notes import NoteVerbs
from trellis.engines.jetstream.old_jobs import OldJobs
from trellis.engines.jetstream.operating import OperatingVerbs
from trellis.engines.jetstream.plain import PlainWriter
from trellis.engines.jetstream.presence import Presences
from trellis.engines.jetstream.projection import ProjectedVerbs, Projection, with_lag
from trellis.engines.jetstream.reads import ReadVerbs
from trellis.engines.jetstream.removal import RemovalVerbs
from trellis.engines.jetstream.schedules import ScheduleTable, ScheduleVerbs
from trellis.engines.jetstream.sessions import SessionTable, SessionVerbs
from trellis.engines.jetstream.settings import CachedSettings, Openness
from trellis.engines.jetstream.state import Followed
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.time import Time
from trellis.engines.jetstream.writing import ANSWER
from trellis.engines.redaction import as_argument
from trellis.engines.values import (
    CreateResult,
    Due,
    DueJob,
    DueKind,
    Health,
    Migration,
    Topic,
    answer_to,
)
from trellis.errors import (
    EngineUnavailable,
    NotATrellisDatabase,
    SchemaTooNew,
    TransactionRefused,
)


class JetStreamEngine(
    CreateVerb,
    ClaimVerb,
    NoteVerbs,
    SessionVerbs,
    ReadVerbs,
    AuditVerbs,
    ContractVerbs,
    LimitVerbs,
    LockVerbs,
    OperatingVerbs,
    ScheduleVerbs,
    ProjectedVerbs,
    RemovalVerbs,
):
    """Jobs in streams of NATS."""

    def __init__(
        self, url: str, *, prefix: str = "trellis", clock: Clock | None = None,
        replicas: int | None = None,
    ) -> None:  # fmt: skip
        self._url, self._link = url, Connection(url.split(","))
        self._subjects = Subjects(prefix)
        self._link.check_silence = partial(
            topology.refuse_moved, self._link, self._subjects, ANSWER
        )
        self._store = Store(self._link, self._subjects, Time(clock))
        self._seen = Seen()
        self._sessions = SessionTable(self._store)
        self._presences = Presences(self._store)
        self._archiving = ArchiveQueue(self._store)
        self._locks = LockTable(self._store, self._sessions)
        self._limits = LimitTable(self._store, self._sessions)
        self._schedules = ScheduleTable(self._store, self._admit)
        self._dependencies = Dependencies(self._store)
        self._batches = BatchTable(self._store, self._dependencies, self._create_following)
        self._followups = Followups(
            self._store,
            self._batches,
            self._dependencies,
            self._stage_following,
            self._create_following,
        )
        self._projection = Projection(self._link, self._subjects)
        self._old_jobs = OldJobs(self._store, self._projection, self._seen.has)
        self._hints = Hints()
        self._listener = Listener(self._store, self._hints)
        self._openness = CachedSettings(self._store, partial(Openness.read, self._store))
        self._plain = PlainWriter(self._store)
        self._lanes = Lanes(self._store, self._listener)
        self._replicas = replicas
        #: Whether the streams were found fit since the engine was opened.
        self._is_checked = False
        #: The keys that are maintained here.
        self._lines = self._lines_of("*")

    def _lines_of(self, service: str) -> Followed:
        """Return the keys of a service, or of all, to be looked at again and again."""
        wanted = self._subjects.own("keys", service, "*", "h", "*")
        return Followed(self._store, wanted, keys.CODEC, may_change)

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""
        return Capabilities(
            durable=True,
            processes=True,
            transactions=False,
            boot_clock=False,
            one_writer=False,
            caller_transactions=False,
            ordered=False,
            split_types=False,
            key_rates=False,
        )

    async def open(self) -> None:
        """Connect, and check that the streams are there; if not, no connection is left."""
        if self._is_checked and self._link.is_open:
            return
        self._is_checked = False
        await self._link.open()
        try:
            await self._check_streams()
        except BaseException:
            await self._link.close()
            raise
        self._is_checked = True
        self._hints.reopen()

    async def _check_streams(self) -> None:
        topology.check_version(self._link.version)
        schema = await topology.schema_of(self._link, self._subjects)
        if not schema:
            raise NotATrellisDatabase(
                f"There is no stream {self._subjects.jobs} on the NATS server. Correct the URL and "
                f"its prefix, or make the streams. Run: trellis migrate --url "
                f"{as_argument(f'{self._url}?prefix={self._subjects.prefix}')}"
            )
        if schema > topology.SCHEMA:
            raise SchemaTooNew(
                f"The streams have schema {schema}, this program knows {topology.SCHEMA}. Upgrade "
                "this program."
            )
        self._store.replicas = await topology.replicas_of(self._link, self._subjects) or 1
        await self._store.learn_time()
        self._listener.close()  # what was listened to on a connection before
        await self._listener.open()

    async def close(self) -> None:
        """Disconnect; watches end."""
        self._is_checked = False
        self._hints.close()
        self._listener.close()
        self._store.hear()
        await self._lanes.close()
        await self._link.close()

    def create_within(
        self,
        connection: object,  # noqa: ARG002 - as in the port
        jobs: Sequence[NewJob],  # noqa: ARG002
    ) -> list[CreateResult] | Awaitable[list[CreateResult]]:
        """Refuse: NATS joins no transaction of a database."""
        raise TransactionRefused(
            "Jobs on NATS cannot join a transaction of your database; nothing was stored. Write a "
            "row into an outbox table of yours and create the job from it, or use PostgreSQL."
        )

    # -- maintenance ---------------------------------------------------------------------------

    async def due(self, kind: DueKind, limit: int) -> Due:
        """Return what maintenance must look at."""
        if kind == "sessions":
            await self._store.learn_time()
            now = self._store.time.told()
            sessions = await self._sessions.open_ones()
            lapsed = [each for each, value in sessions.items() if value.is_lapsed(now)]
            return Due(now, sessions=tuple(lapsed[:limit]))
        await self._store.refresh_time()
        if kind == "lost":
            return await self._lost(limit)
        if kind == "batches":
            found = [DueJob(each.record, None) for each in await self._to_cancel()]
            return Due(self._store.time.now(), jobs=tuple(found[:limit]))
        overdue: list[DueJob] = await self._projection.ask("due", self._store.time.now(), limit)
        # Read again: not before any event of these jobs.
        return Due(self._store.time.now(), jobs=tuple(overdue))

    async def _lost(self, limit: int) -> Due:
        """Return the claimed jobs whose session has ended."""
        claimed = await self._sessions.lost()
        jobs = [
            DueJob(current.record, await self._seen_at(current))
            for current in claimed.values()
            if not current.head.blocked
        ]
        for current in claimed.values():
            self._seen.add(current)
        return Due(self._store.time.now(), jobs=tuple(jobs[:limit]))

    async def promote(self, limit: int) -> int:
        """Give free slots to jobs whose time has come; end lingering that is over."""
        now = self._store.time.now()
        moved: int = 0
        for subject, state, _ in await self._lines.look():
            if may_move(state, now):
                with self._store.passing_over():
                    moved += await self._end_in_key(
                        subject, lambda slot: (slot.linger_until or now + 1) <= now
                    )
        moved += await self._followups.move_left()
        # Jobs become claimable by their hints; the projection counts them.
        with suppress(EngineUnavailable):
            counted: int = await self._projection.ask("promote", now, limit)
            moved += counted
        await self._limits.count_again()
        if await self._limits.end_overdue():
            await self._link.tell(self._subjects.woken("limit"))
        return moved + await self._locks.end_overdue()

    async def _end_lingering(self, stopped: Iterable[Fence]) -> None:
        fences = set(stopped)
        if fences:
            await self._locks.end_lingering(fences)
            if await self._limits.end_lingering(fences):
                await self._link.tell(self._subjects.woken("limit"))
            await self._free_lingering(fences)

    async def _end_lingering_of(self, session: SessionId) -> None:
        await self._locks.end_lingering_of(session)
        await self._limits.end_lingering_of(session)
        await self._free_lingering(await self._sessions.places(session))

    async def _admit(self, draft: Draft, jobs: Sequence[NewJob]) -> list[CreateResult]:
        checked = [self._check(check_new_job(new)) for new in jobs]
        openness = await self._openness.get()
        decisions = [await self._decide(draft, new, openness, None) for new in checked]
        await self._hand_over(draft, checked, decisions)
        return [answer_to(new, each) for new, each in zip(checked, decisions, strict=True)]

    async def migrate(self, *, dry_run: bool = False, by: By | None = None) -> Migration:  # noqa: ARG002
        """Put the streams in place."""
        await self._link.open()
        topology.check_version(self._link.version)
        return await topology.migrate(self._link, self._subjects, self._replicas, dry_run=dry_run)

    async def health(self) -> Health:
        """Report what the servers, the streams and the user of this engine are."""
        return await with_lag(await describe(self._link, self._subjects), self._projection)

    def importer(self) -> JetStreamImporter:
        """Return the import of jobs from another store."""
        return JetStreamImporter(
            self._store, sessions=self._sessions, schedules=self._schedules,
            dependencies=self._dependencies, batches=self._batches, followups=self._followups,
        )  # fmt: skip

    # -- reads ---------------------------------------------------------------------------------

    async def links(self, ids: Sequence[JobId], limit: int = 1000) -> list[Link]:
        """Return which jobs these wait for, and which wait for them."""
        return await self._dependencies.links(ids, limit)

    async def now(self) -> Instant:
        """Return the engine's time."""
        await self._store.refresh_time()
        return self._store.time.now()

    async def catch_up(self) -> None:
        """Wait until the work queue has every hint that was stored before this call."""
        subjects = self._subjects
        latest = {
            stream: await self._last_of(stream, filters)
            for stream, filters in topology.hints_of(subjects).items()
        }
        while True:
            info = await self._link.api(f"STREAM.INFO.{subjects.work}")
            # A server that has just begun to lead the stream knows nothing of its sources yet.
            taken = {each["name"]: each.get("seq", 0) for each in info.get("sources") or ()}
            if all(taken.get(stream, 0) >= last for stream, last in latest.items()):
                return
            await asyncio.sleep(0.001)

    async def _last_of(self, stream: str, filters: Iterable[str]) -> int:
        """Return the sequence of the last message of a stream that one of these matches."""
        found = await asyncio.gather(*(self._link.last(stream, each) for each in filters))
        return max((got.sequence for got in found if got is not None), default=0)

    async def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield hints."""
        await self._listener.listen(topics)
        async for topic in self._hints.watch(topics):
            yield topic
