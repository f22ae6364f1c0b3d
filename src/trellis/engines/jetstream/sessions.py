"""Sessions of worker processes, and what each of them has claimed.

A session is one value, renewed by its owner; its lease is the lease of all its claims. What a
session is about to claim is written first, in a place of its own (`Held`), with the address by
which the work message is acknowledged. So the places of a session name at least what it has
claimed; the heads of the jobs say which of it is still claimed.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import Final, NamedTuple

from trellis.core.durations import Instant, Micros
from trellis.core.job import Fence, JobId, SessionId
from trellis.engines.audit import OPERATOR, By, drain_of
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.link import Written
from trellis.engines.jetstream.presence import Presences
from trellis.engines.jetstream.projection import Projection
from trellis.engines.jetstream.state import Followed, Listed, latest
from trellis.engines.jetstream.store import Current, Store, Value
from trellis.engines.jetstream.subjects import JobName, is_token
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
from trellis.errors import EngineError, EngineUnavailable

#: How the addresses begin by which deliveries are acknowledged.
_DELIVERIES: Final = "$JS.ACK."
#: For how many seconds a session counts as open once it was read.
_KNOWN_OPEN: Final = 1.0


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
    #: The sequence of the last event of the job before the claim.
    sequence: int = 0


class Place(NamedTuple):
    """What one call of `claim` was about to claim."""

    claims: tuple[Held, ...]


_NO_CLAIMS: Final = Place(())
#: How often, in seconds, a process looks which claims have ended of those that it had at the look
#: before: most are dropped when this process stores their ends. And how often the leader looks
#: again at claims of ended sessions that were over.
_LOOK_EVERY: Final = 60.0
_SESSION: Final = codec_of(SessionValue)
_PLACE: Final = codec_of(Place)
_ASKED: Final = codec_of(Instant)


class SessionTable:
    """All sessions and their claims."""

    def __init__(self, store: Store) -> None:
        self._store = store
        value = store.subjects.value
        self._open = Followed(store, value("session", "*"), _SESSION, _is_open)
        self._claiming = Followed(store, value("held", "*", "*"), _PLACE, _has_claims)
        #: Claims of ended sessions whose jobs have gone on, and until when they are not read again.
        self._over: frozenset[Fence] = frozenset()
        self._over_until = 0.0
        #: The claims that this process has made or seen, by fence.
        self.held: dict[Fence, Held] = {}
        #: When this process last knew a session to be open, by the monotonic clock.
        self._open_at: dict[SessionId, float] = {}
        #: The places that this process knows, with their sequences; None: of another process.
        self._places: dict[tuple[SessionId, int], tuple[int, Place | None]] = {}
        #: The claims of the latest look, and when the next one is due, by the monotonic clock.
        self._looked_at: frozenset[Fence] = frozenset()
        self._next_look = 0.0

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

    async def may_claim(self, session: SessionId) -> bool:
        """Return whether a session is open, or was when this process looked within a second.

        What is claimed by a session that another process has just reaped is due as lost.
        """
        asked_at = time.monotonic()
        if asked_at - self._open_at.get(session, -_KNOWN_OPEN) < _KNOWN_OPEN:
            return True
        is_open = not await self.is_over(session)
        if is_open:
            self._open_at = {session: asked_at}
        return is_open

    async def all(self) -> dict[SessionId, SessionValue]:
        """Return all sessions, in order of opening."""
        return _sorted(
            await latest(self._store, self._store.subjects.value("session", "*"), _SESSION)
        )

    async def open_ones(self) -> dict[SessionId, SessionValue]:
        """Return the sessions that have not ended, in order of opening."""
        return _sorted(await self._open.look())

    async def _ended(self, sessions: Iterable[SessionId]) -> set[SessionId]:
        """Return which of these sessions have ended, or are not there any more.

        One that this version cannot read has not: a newer worker may have written it.
        """
        ended = set[SessionId]()
        for session in sessions:
            with self._store.passing_over():
                if await self.is_over(session):
                    ended.add(session)
        return ended

    async def open(self, info: WorkerInfo, lease: Micros) -> Session:
        """Start a session."""
        session, now = SessionId(secrets.randbits(62) + 1), self._store.time.told()
        value = SessionValue(info, lease, now, now, now + lease)
        await self._store.put(self._subject(session), _SESSION, value, 0)
        return Session(session, lease, now)

    async def restore(self, session: SessionId, info: WorkerInfo) -> None:
        """Store who had an ended session of another store, unless it is known here."""
        now = self._store.time.now()
        value = SessionValue(info, 0, now, now, now, ended_at=now)
        await self._store.put(self._subject(session), _SESSION, value, 0)

    async def change(
        self, session: SessionId, change: Callable[[SessionValue], SessionValue | None]
    ) -> SessionValue | None:
        """Write what `change` makes of a session; None if it makes nothing, or there is none."""
        while True:
            value, sequence = await self.read(session)
            after = None if value is None else change(value)
            if after is None or after.ended_at is not None:
                self._open_at.pop(session, None)
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
        with suppress(EngineError):
            # Maintenance need not look at places by which nothing is claimed.
            for owner, number in list(self._places):
                if owner == session and (sequence := self._free_place(session, number)):
                    await self._store.put(self._place(session, number), _PLACE, None, sequence)
        self._places = {each: known for each, known in self._places.items() if each[0] != session}

    async def forget(self, session: SessionId) -> None:
        """Remove an ended session, and its places unless a job is still claimed by it."""
        if not await self.claimed(await self.places(session)):
            subjects = self._store.subjects
            await self._store.forget(subjects.value("held", f"{session:016x}", "*"))
            await self._store.forget(subjects.own("draining", f"{session:016x}"))
        await self._store.forget(self._subject(session))

    # -- claims --------------------------------------------------------------------------------

    async def intend(self, session: SessionId, claims: Sequence[Held]) -> None:
        """Write what is about to be claimed, in a place that is free."""
        if time.monotonic() >= self._next_look:
            await self._forget_ended()
        place = Place(tuple(claims))
        for number in count():
            sequence = self._free_place(session, number)
            if sequence is None:
                continue
            answer = await self._store.put(self._place(session, number), _PLACE, place, sequence)
            if isinstance(answer, Written):
                self._places[session, number] = answer.sequence, place
                self.held |= {Fence(session, each.token): each for each in claims}
                return
            # Another process has it, or a write of this one that seemed to have failed.
            self._places[session, number] = answer.sequence or 0, None

    def _place(self, session: SessionId, number: int) -> str:
        return self._store.subjects.value("held", f"{session:016x}", str(number))

    def _free_place(self, session: SessionId, number: int) -> int | None:
        """Return the sequence that the next write of a place expects; None: it is taken."""
        sequence, place = self._places.get((session, number), (0, _NO_CLAIMS))
        if place is None or any(Fence(session, each.token) in self.held for each in place.claims):
            return None
        return sequence

    async def _forget_ended(self) -> None:
        """Drop claims that another process has ended, or whose start has failed for good."""
        self._next_look = time.monotonic() + _LOOK_EVERY
        known = {fence: self.held[fence] for fence in self._looked_at if fence in self.held}
        over = await asyncio.gather(*map(self._is_claim_over, known, known.values()))
        for fence, is_over in zip(known, over, strict=True):
            if is_over:
                self.drop(fence)
        self._looked_at = frozenset(self.held)

    async def _is_claim_over(self, fence: Fence, held: Held) -> bool:
        """Return whether a claim has ended, or can no longer be stored."""
        with self._store.passing_over():  # what cannot be read may be an event of the attempt
            current = await self._store.read(JobName(held.service, held.type, held.id))
            return not isinstance(current, Current) or (
                # Until another event follows, a start without an answer may still be stored.
                current.head.fence != fence and current.sequence != held.sequence
            )
        return False

    def expect(self, fence: Fence, sequence: int) -> None:
        """Record that the start of a claim now expects this event of the job to be the last."""
        held = self.held.get(fence)
        if held is not None:
            self.held[fence] = held._replace(sequence=sequence)

    def drop(self, fence: Fence) -> Held | None:
        """Forget a claim that has ended; return it if it is known."""
        return self.held.pop(fence, None)

    async def places(self, session: SessionId | None = None) -> dict[Fence, Held]:
        """Return what the places name, of one session or of all."""
        name = "*" if session is None else f"{session:016x}"
        return _claims(
            await latest(self._store, self._store.subjects.value("held", name, "*"), _PLACE)
        )

    async def lost(self) -> dict[Fence, Current]:
        """Return the jobs that are claimed by sessions which have ended, in order of creation."""
        claims = _claims(await self._claiming.look())
        is_open = await self.open_ones()
        left = {fence: held for fence, held in claims.items() if fence.session not in is_open}
        if time.monotonic() >= self._over_until:
            # A start without an answer may have been stored since.
            self._over, self._over_until = frozenset(), time.monotonic() + _LOOK_EVERY
        left = {fence: held for fence, held in left.items() if fence not in self._over}
        ended = await self._ended({fence.session for fence in left})
        left = {fence: held for fence, held in left.items() if fence.session in ended}
        claimed = await self.claimed(left)
        self._over |= left.keys() - claimed.keys()
        self.held |= {fence: left[fence] for fence in claimed}
        return claimed

    async def claimed(self, claims: dict[Fence, Held]) -> dict[Fence, Current]:
        """Return those of these claims that still hold, in order of creation."""
        found = await asyncio.gather(*map(self._claimed, claims.values()))
        holding = {
            fence: current
            for fence, current in zip(claims, found, strict=True)
            if isinstance(current, Current) and current.head.fence == fence
        }
        return dict(sorted(holding.items(), key=lambda each: each[1].definition.row))

    async def _claimed(self, held: Held) -> Current | None:
        with self._store.passing_over():
            found = await self._store.read(JobName(held.service, held.type, held.id))
            return found if isinstance(found, Current) else None
        return None


def _session_in(token: str) -> SessionId | None:
    """Return the session that a token of a subject names; None: it names none."""
    try:
        return SessionId(int(token, 16))
    except ValueError:
        return None


def _is_open(value: SessionValue) -> bool:
    return value.ended_at is None


def _has_claims(place: Place) -> bool:
    return bool(place.claims)


def _sorted(found: Iterable[Listed]) -> dict[SessionId, SessionValue]:
    """Return sessions in order of opening."""
    ordered = sorted(found, key=lambda each: each.value.number or each.sequence)
    pairs = ((_session_in(each.subject.rpartition(".")[2]), each.value) for each in ordered)
    return {session: value for session, value in pairs if session is not None}


def _claims(places: Iterable[Listed]) -> dict[Fence, Held]:
    """Return what places name."""
    claims: dict[Fence, Held] = {}
    for subject, place, _ in places:
        owner = _session_in(subject.split(".")[-2])
        if owner is None:
            continue
        for each in place.claims:
            # Users of other services may write places: nothing else is published to or read.
            if each.ack.startswith(_DELIVERIES) and all(map(is_token, each[:3])):
                claims[Fence(owner, each.token)] = each
    return claims


class SessionVerbs:
    """The part of the engine about worker processes."""

    _store: Store
    _sessions: SessionTable
    _presences: Presences
    _projection: Projection

    async def open_session(self, info: WorkerInfo, lease: Micros) -> Session:
        """Start a session."""
        await self._store.learn_time()
        return await self._sessions.open(info, lease)

    async def renew(
        self,
        session: SessionId,
        held: Sequence[Fence],
        stopped: Sequence[Fence] = (),
        report: WorkerReport = NO_REPORT,
    ) -> Renewed | SessionLost:
        """Extend the lease, and keep the work messages of the claims with this process."""
        await self._store.learn_time()
        now = self._store.time.told()

        def extended(value: SessionValue) -> SessionValue | None:
            if value.ended_at is not None:
                return None
            until = now + value.lease
            return value._replace(renewed_at=now, lease_until=until, report=report)

        renewed = await self._sessions.change(session, extended)
        if renewed is None:
            return SessionLost(now)
        await self._presences.tell(session, renewed.info)
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
        self._presences.forget(session)

    async def reap(self, session: SessionId) -> bool:
        """End a session whose lease has lapsed."""
        await self._store.learn_time()
        now = self._store.time.told()
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
        now, found = self._store.time.told(), await self._sessions.all()
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
