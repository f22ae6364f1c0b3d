"""Sessions of worker processes, and what each of them has claimed.

A session is one value, renewed by its owner; its lease is the lease of all its claims. What a
session is about to claim is written first, in a place of its own (`Held`), with the address by
which the work message is acknowledged. So the places of a session name at least what it has
claimed; the heads of the jobs say which of it is still claimed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from trellis.core.durations import Instant, Micros
from trellis.core.job import Fence, JobId, SessionId
from trellis.engines.audit import OPERATOR, By, drain_of
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.link import Written
from trellis.engines.jetstream.projection import Projection
from trellis.engines.jetstream.store import Current, Store, Value
from trellis.engines.jetstream.subjects import JobName
from trellis.engines.operating import WorkerName
from trellis.engines.values import (
    Renewed,
    Session,
    SessionLost,
    SessionRecord,
    WorkerInfo,
)
from trellis.engines.wire import codec_of
from trellis.engines.worker_report import NO_REPORT, WorkerReport
from trellis.errors import EngineUnavailable


class SessionValue(NamedTuple):
    """A session as it is stored."""

    info: WorkerInfo
    lease: Micros
    opened_at: Instant
    renewed_at: Instant
    lease_until: Instant
    ended_at: Instant | None = None
    report: WorkerReport = NO_REPORT
    #: The sequence of its first write: sessions are in order of opening. 0: this is the first.
    number: int = 0

    def is_lapsed(self, now: Instant) -> bool:
        """Return whether it is open and its lease is over."""
        return self.ended_at is None and self.lease_until <= now


class Held(NamedTuple):
    """One claim of a session."""

    service: str
    type: str
    id: JobId
    row: int
    token: int
    #: Where the delivery of its work message is acknowledged.
    ack: str


class Place(NamedTuple):
    """What one call of `claim` was about to claim."""

    claims: tuple[Held, ...]


_SESSION: Final = codec_of(SessionValue)
_PLACE: Final = codec_of(Place)
_ASKED: Final = codec_of(Instant)


class SessionTable:
    """All sessions and their claims."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: The claims that this process has made or seen, by fence.
        self.held: dict[Fence, Held] = {}
        #: The places that this process has written, with their sequences.
        self._places: dict[tuple[SessionId, int], tuple[int, Place]] = {}

    # -- sessions ------------------------------------------------------------------------------

    def _subject(self, session: SessionId) -> str:
        return self._store.subjects.value("session", f"{session:016x}")

    async def read(self, session: SessionId) -> Value[SessionValue]:
        """Return a session."""
        return await self._store.value(self._subject(session), _SESSION)

    async def is_over(self, session: SessionId) -> bool:
        """Return whether a session has ended."""
        found = (await self.read(session)).value
        return found is None or found.ended_at is not None

    async def all(self) -> dict[SessionId, SessionValue]:
        """Return all sessions, in order of opening."""
        found = await self._store.values([self._store.subjects.value("session", "*")], _SESSION)
        sessions = [
            (value.value.number or value.sequence, SessionId(int(subject.rpartition(".")[2], 16)),
             value.value)
            for subject, value in found if value.value is not None
        ]  # fmt: skip
        return {session: value for _, session, value in sorted(sessions, key=lambda e: e[0])}

    async def open(self, info: WorkerInfo, lease: Micros) -> Session:
        """Start a session."""
        session, now = SessionId(secrets.randbits(62) + 1), self._store.time.now()
        value = SessionValue(info, lease, now, now, now + lease)
        await self._store.put(self._subject(session), _SESSION, value, 0)
        return Session(session, lease, now)

    async def change(
        self, session: SessionId, change: Callable[[SessionValue], SessionValue | None]
    ) -> SessionValue | None:
        """Write what `change` makes of a session; None if it makes nothing, or there is none."""
        while True:
            value, sequence = await self.read(session)
            after = None if value is None else change(value)
            if after is None:
                return None
            if not after.number:
                after = after._replace(number=sequence)
            answer = await self._store.put(self._subject(session), _SESSION, after, sequence)
            if isinstance(answer, Written):
                return after

    async def end(self, session: SessionId) -> None:
        """End a session; an ended one does not change."""
        now = self._store.time.now()
        await self.change(
            session,
            lambda value: None if value.ended_at is not None else value._replace(ended_at=now),
        )

    async def forget(self, session: SessionId) -> None:
        """Remove an ended session, and its places unless a job is still claimed by it."""
        if not await self.claimed(await self.places(session)):
            subjects = self._store.subjects
            await self._store.forget(subjects.value("held", f"{session:016x}", "*"))
        await self._store.forget(self._subject(session))

    # -- claims --------------------------------------------------------------------------------

    async def intend(self, session: SessionId, claims: Sequence[Held]) -> None:
        """Write what is about to be claimed, in a place that is free."""
        wanted = Place(tuple(claims))
        number = 0
        while True:
            known = self._places.get((session, number))
            if known is not None and any(self._is_held(session, each) for each in known[1].claims):
                number += 1
                continue
            subject = self._store.subjects.value("held", f"{session:016x}", str(number))
            expect = 0 if known is None else known[0]
            answer = await self._store.put(subject, _PLACE, wanted, expect)
            if isinstance(answer, Written):
                self._places[session, number] = answer.sequence, wanted
                for each in claims:
                    self.held[Fence(session, each.token)] = each
                return
            # Another process claims for the same session.
            number += 1

    def _is_held(self, session: SessionId, held: Held) -> bool:
        return Fence(session, held.token) in self.held

    def drop(self, fence: Fence) -> Held | None:
        """Forget a claim that has ended; return it if it is known."""
        return self.held.pop(fence, None)

    async def places(self, session: SessionId | None = None) -> dict[Fence, Held]:
        """Return what the places name, of one session or of all."""
        name = "*" if session is None else f"{session:016x}"
        found = await self._store.values([self._store.subjects.value("held", name, "*")], _PLACE)
        claims: dict[Fence, Held] = {}
        for subject, value in found:
            owner = SessionId(int(subject.split(".")[-2], 16))
            for each in value.value.claims if value.value is not None else ():
                claims[Fence(owner, each.token)] = each
        return claims

    async def claimed(self, claims: dict[Fence, Held]) -> dict[Fence, Current]:
        """Return those of these claims that still hold, in order of creation."""
        names = [JobName(each.service, each.type, each.id) for each in claims.values()]
        found = await asyncio.gather(*map(self._store.read, names))
        holding = {
            fence: current
            for fence, current in zip(claims, found, strict=True)
            if isinstance(current, Current) and current.head.fence == fence
        }
        return dict(sorted(holding.items(), key=lambda each: each[1].definition.row))


class SessionVerbs:
    """The part of the engine about worker processes."""

    _store: Store
    _sessions: SessionTable
    _projection: Projection

    async def open_session(self, info: WorkerInfo, lease: Micros) -> Session:
        """Start a session."""
        await self._store.time.learn(self._store.link, self._store.subjects.state)
        return await self._sessions.open(info, lease)

    async def renew(
        self,
        session: SessionId,
        held: Sequence[Fence],
        stopped: Sequence[Fence] = (),
        report: WorkerReport = NO_REPORT,
    ) -> Renewed | SessionLost:
        """Extend the lease, and keep the work messages of the claims with this process."""
        await self._store.time.learn(self._store.link, self._store.subjects.state)
        now = self._store.time.now()

        def extended(value: SessionValue) -> SessionValue | None:
            if value.ended_at is not None:
                return None
            until = now + value.lease
            return value._replace(renewed_at=now, lease_until=until, report=report)

        if await self._sessions.change(session, extended) is None:
            return SessionLost(now)
        await self._end_lingering({each for each in stopped if each.session == session})
        claims = await self._sessions.places(session)
        stored = await self._sessions.claimed(claims)
        for fence in stored:
            await self._store.link.tell(claims[fence].ack, b"+WPI")
        asked = (each for each in held if each in stored and stored[each].head.asked_at is not None)
        lost = (each for each in held if each not in stored)
        unknown = (current.record for fence, current in stored.items() if fence not in held)
        draining = await self._is_asked_to_drain(session)
        return Renewed(self._store.time.now(), tuple(asked), tuple(lost), tuple(unknown), draining)

    async def _end_lingering(self, stopped: Iterable[Fence]) -> None:
        """Free what lingers for attempts whose handlers have stopped."""
        raise NotImplementedError

    async def _end_lingering_of(self, session: SessionId) -> None:
        """Free what lingers for a session that was reaped."""
        raise NotImplementedError

    async def close_session(self, session: SessionId) -> None:
        """End a session gracefully."""
        await self._sessions.end(session)

    async def reap(self, session: SessionId) -> bool:
        """End a session whose lease has lapsed."""
        now = self._store.time.now()
        found = (await self._sessions.read(session)).value
        if found is not None and found.ended_at is None:
            ended = await self._sessions.change(
                session,
                lambda value: value._replace(ended_at=now) if value.is_lapsed(now) else None,
            )
            if ended is None and not await self._sessions.is_over(session):
                return False
        await self._end_lingering_of(session)
        return True

    async def sessions(self) -> list[SessionRecord]:
        """List sessions, the newest first."""
        now, found = self._store.time.now(), await self._sessions.all()
        claimed = await self._sessions.claimed(await self._sessions.places())
        counts: dict[SessionId, int] = {}
        for fence in claimed:
            counts[fence.session] = counts.get(fence.session, 0) + 1
        return [
            SessionRecord(
                session, value.info, value.opened_at, value.renewed_at, value.lease,
                value.is_lapsed(now), value.ended_at, counts.get(session, 0), value.report,
                await self._is_asked_to_drain(session),
            )
            for session, value in reversed(found.items())
        ]  # fmt: skip

    async def _is_asked_to_drain(self, session: SessionId) -> bool:
        subject = self._store.subjects.own("draining", f"{session:016x}")
        return (await self._store.value(subject, _ASKED)).value is not None

    async def ask_drain(self, session: SessionId, by: By = OPERATOR) -> bool:
        """Ask a worker process to finish its jobs and exit."""
        subject = self._store.subjects.own("draining", f"{session:016x}")
        while True:
            found = (await self._sessions.read(session)).value
            if found is None or found.ended_at is not None:
                return False
            draft = Draft(self._store)
            if await draft.value(subject, _ASKED) is not None:
                return True
            draft.put(subject, draft.now)
            draft.record(drain_of(session, found.info.name), by)
            if isinstance(await draft.write(), Written):
                return True

    async def identify(self, sessions: Sequence[SessionId]) -> dict[SessionId, WorkerName]:
        """Return the worker processes of sessions."""
        found = await asyncio.gather(*map(self._sessions.read, sessions))
        names = {
            session: WorkerName(*value.value.info[:3])
            for session, value in zip(sessions, found, strict=True)
            if value.value is not None
        }
        removed = [session for session in sessions if session not in names]
        if removed:
            with suppress(EngineUnavailable):
                names |= await self._projection.ask("identify", removed)
        return names
