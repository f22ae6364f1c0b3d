"""The JetStream engine: every verb of the port, put together from its parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import suppress

from trellis.core.admission import check_new_job
from trellis.core.dependencies import Link
from trellis.core.durations import Instant
from trellis.core.job import Fence, JobId, NewJob, SessionId
from trellis.engines.audit import By
from trellis.engines.clock import Clock
from trellis.engines.hints import Hints
from trellis.engines.jetstream import keys, topology
from trellis.engines.jetstream.archive import ArchiveQueue
from trellis.engines.jetstream.audit import AuditVerbs
from trellis.engines.jetstream.batches import BatchTable
from trellis.engines.jetstream.claim import ClaimVerb
from trellis.engines.jetstream.commit import CommitVerb, Seen
from trellis.engines.jetstream.contracts import ContractVerbs
from trellis.engines.jetstream.create import CreateVerb
from trellis.engines.jetstream.dependencies import Dependencies
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.followups import Followups
from trellis.engines.jetstream.hints import Listener
from trellis.engines.jetstream.limits import LimitTable, LimitVerbs
from trellis.engines.jetstream.link import Link as Connection
from trellis.engines.jetstream.locks import LockTable, LockVerbs
from trellis.engines.jetstream.notes import NoteVerbs
from trellis.engines.jetstream.operating import OperatingVerbs
from trellis.engines.jetstream.projection import ProjectedVerbs, Projection
from trellis.engines.jetstream.reads import ReadVerbs
from trellis.engines.jetstream.removal import RemovalVerbs
from trellis.engines.jetstream.schedules import ScheduleTable, ScheduleVerbs
from trellis.engines.jetstream.sessions import SessionTable, SessionVerbs
from trellis.engines.jetstream.settings import Openness
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.jetstream.time import Time
from trellis.engines.values import (
    Capabilities,
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
    VersionMismatch,
)


class JetStreamEngine(
    CreateVerb,
    ClaimVerb,
    CommitVerb,
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
        self._link = Connection(url.split(","))
        self._subjects = Subjects(prefix)
        self._store = Store(self._link, self._subjects, Time(clock))
        self._seen = Seen()
        self._sessions = SessionTable(self._store)
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
        self._hints = Hints()
        self._listener = Listener(self._link, self._subjects, self._hints)
        self._consumers: set[tuple[str, str]] = set()
        self._turn = 0
        self._replicas = replicas

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
        """Connect, and check that the streams are there."""
        await self._link.open()
        self._hints.reopen()
        if self._link.version < topology.FLOOR:
            raise VersionMismatch(
                f"The NATS server has version {'.'.join(map(str, self._link.version))}. Trellis "
                f"needs {'.'.join(map(str, topology.FLOOR))} or later: upgrade the server."
            )
        schema = await topology.schema_of(self._link, self._subjects)
        if not schema:
            raise NotATrellisDatabase(
                f"There is no stream {self._subjects.jobs} on the NATS server. Run "
                "`trellis migrate`, or correct the URL and its prefix."
            )
        if schema > topology.SCHEMA:
            raise SchemaTooNew(
                f"The streams have schema {schema}, this program knows {topology.SCHEMA}. Upgrade "
                "this program."
            )
        await self._store.time.learn(self._link, self._subjects.state)

    async def close(self) -> None:
        """Disconnect; watches end."""
        self._hints.close()
        self._listener = Listener(self._link, self._subjects, self._hints)
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
            now = self._store.time.now()
            sessions = await self._sessions.all()
            lapsed = [each for each, value in sessions.items() if value.is_lapsed(now)]
            return Due(now, sessions=tuple(lapsed[:limit]))
        if kind == "lost":
            return await self._lost(limit)
        if kind == "batches":
            found = [DueJob(each.record, None) for each in await self._to_cancel()]
            return Due(self._store.time.now(), jobs=tuple(found[:limit]))
        due: Due = await self._projection.ask("due", kind, limit)
        return due

    async def _lost(self, limit: int) -> Due:
        """Return the claimed jobs whose session has ended."""
        claims = await self._sessions.places()
        sessions = await self._sessions.all()
        over = {
            fence: held
            for fence, held in claims.items()
            if fence.session not in sessions or sessions[fence.session].ended_at is not None
        }
        claimed = await self._sessions.claimed(over)
        self._sessions.held |= {fence: over[fence] for fence in claimed}
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
        wanted = self._subjects.own("keys", "*", "*", "h", "*")
        for subject, value in await self._store.values([wanted], keys.CODEC):
            state: keys.KeyState = value.value or keys.KeyState("")
            if keys.hand_over(state, now)[0] != state:
                moved += await self._end_in_key(
                    subject, lambda slot: (slot.linger_until or now + 1) <= now
                )
        moved += await self._followups.move_left()
        # Jobs become claimable by their hints; the projection counts them.
        with suppress(EngineUnavailable):
            counted: int = await self._projection.ask("promote", limit)
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
        queues = {(new.service, new.queue) for new in checked}
        openness = await Openness.read(self._store, queues)
        decisions = [await self._decide(draft, new, openness, None) for new in checked]
        await self._hand_over(draft, checked, decisions)
        return [answer_to(new, each) for new, each in zip(checked, decisions, strict=True)]

    async def migrate(self, *, dry_run: bool = False, by: By | None = None) -> Migration:  # noqa: ARG002
        """Put the streams in place."""
        await self._link.open()
        return await topology.migrate(self._link, self._subjects, self._replicas, dry_run=dry_run)

    async def health(self) -> Health:
        """Report what this engine is."""
        info = await self._link.api(f"STREAM.INFO.{self._subjects.jobs}")
        replicas = info["config"]["num_replicas"]
        words = "one server" if replicas == 1 else f"a majority of {replicas} servers"
        return Health(
            "jetstream",
            f"{words}; written to disk at once only with sync_interval: always",
            {"replicas": replicas, "messages": info["state"]["messages"]},
        )

    # -- reads ---------------------------------------------------------------------------------

    async def links(self, ids: Sequence[JobId], limit: int = 1000) -> list[Link]:
        """Return which jobs these wait for, and which wait for them."""
        return await self._dependencies.links(ids, limit)

    async def now(self) -> Instant:
        """Return the engine's time."""
        return self._store.time.now()

    async def catch_up(self) -> None:
        """Wait until the work queue has everything that was stored before this call."""
        subjects = self._subjects
        while True:
            delivered = {
                stream: await self._delivered(stream, feed)
                for stream, feed in ((subjects.jobs, "work_feed"), (subjects.later, "later_feed"))
            }
            info = await self._link.api(f"STREAM.INFO.{subjects.work}")
            taken = {each["name"]: each.get("seq", 0) for each in info["sources"]}
            if all(last is not None and taken[name] >= last for name, last in delivered.items()):
                return
            await asyncio.sleep(0.001)

    async def _delivered(self, stream: str, feed: str) -> int | None:
        """Return up to which sequence a feed has sent everything; None: it has more to send."""
        info = await self._link.api(f"CONSUMER.INFO.{stream}.{feed}")
        return None if info["num_pending"] else int(info["delivered"]["stream_seq"])

    async def watch(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        """Yield hints."""
        await self._listener.listen()
        async for topic in self._hints.watch(topics):
            yield topic
