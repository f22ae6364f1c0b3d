"""Locks: one state per name, judged by the session and the attempt of its holder.

A lock is written only when it is taken or freed. Whether it still counts is read: its session must
be open and within its lease, and the attempt must be the present one of its job. Before an attempt
is ended from outside, its locks are marked (`linger`): they count until the handler has stopped, at
most until the moment of the mark. Those that it takes until then are marked once the end is stored,
and one that it takes later is given back. While the attempt is the present one the mark means
nothing, so it does no harm if the end is not stored after all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Final, NamedTuple

from trellis.core.durations import Instant
from trellis.core.job import Fence, SessionId
from trellis.core.names import check_lock_name
from trellis.engines.jetstream.link import Outdated
from trellis.engines.jetstream.sessions import Held, SessionTable, SessionValue
from trellis.engines.jetstream.state import Followed, Listed, latest, purge
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.jetstream.subjects import JobName, digest
from trellis.engines.values import LockHolder
from trellis.engines.wire import codec_of
from trellis.errors import AccessDenied


class Lock(NamedTuple):
    """A lock as it is stored."""

    name: str
    session: SessionId
    token: int
    since: Instant
    #: The job whose attempt holds it; None: the session itself does.
    job: Held | None = None
    #: Set before the attempt is ended from outside.
    linger_until: Instant | None = None

    @property
    def fence(self) -> Fence:
        """The session and token of the holder."""
        return Fence(self.session, self.token)


class Judged(NamedTuple):
    """A lock that counts."""

    holder: LockHolder
    #: It counts only because a handler may still run.
    lingers: bool


_LOCK: Final = codec_of(Lock)


def _lingers(lock: Lock) -> bool:
    return lock.linger_until is not None


class LockTable:
    """All locks."""

    def __init__(self, store: Store, sessions: SessionTable) -> None:
        self._store, self._sessions = store, sessions
        self._wanted = store.subjects.value("lock", "*")
        self._lingering = Followed(store, self._wanted, _LOCK, _lingers)

    async def take(self, name: str, session: SessionId, token: int) -> LockHolder | None:
        """Take a lock that is free or already the caller's; otherwise return its holder."""
        check_lock_name(name)
        subject, fence = self._subject(name), Fence(session, token)
        while True:
            lock, sequence = await self._store.value(subject, _LOCK)
            judged = None if lock is None else await self._judge(lock)
            if judged is not None:
                is_callers = judged.holder[1:3] == fence and not judged.lingers
                return None if is_callers else judged.holder
            held = await self._claim_of(fence) if token else None
            now = self._store.time.now()
            wanted = Lock(name, session, token, now, held)
            if (token and held is None) or await self._judge(wanted) is None:
                if lock is not None:
                    # What was once judged to be over does not count again when the clock is set.
                    await self._delete(subject, sequence)
                return LockHolder(name, session, token, "", None, now)
            answer = await self._store.put(subject, _LOCK, wanted, sequence)
            if isinstance(answer, Outdated):
                continue
            if token and not await self._is_present(wanted):
                # It ended in between, and its end has looked for locks before this one was there.
                await self._delete(subject, answer.sequence)
                return LockHolder(name, session, token, "", None, now)
            return None

    async def free(self, name: str, session: SessionId, token: int) -> bool:
        """Release a lock; False if this holder does not have it."""
        subject = self._subject(name)
        while True:
            lock, sequence = await self._store.value(subject, _LOCK)
            if lock is None or lock.fence != (session, token):
                return False
            # A lapsed session has its locks until it is reaped or another caller takes them.
            is_kept = not lock.token and not await self._sessions.is_over(session)
            counts = is_kept or await self._judge(lock) is not None
            if await self._delete(subject, sequence):
                return counts

    async def holders(self) -> list[LockHolder]:
        """Return the holders of all locks that count, in order of name."""
        judged = await asyncio.gather(*(self._judge(each.value) for each in await self._all()))
        return sorted(each.holder for each in judged if each is not None)

    # -- lingering -----------------------------------------------------------------------------

    async def linger(self, fence: Fence, until: Instant) -> None:
        """Mark the locks of an attempt that is about to be ended while its handler may run.

        To be awaited before the end is stored, and again afterwards: in between the handler may
        take a further lock. A lock that another call frees or takes at the same time is left.
        """
        for subject, lock, sequence in await self._all():
            if lock.token and lock.fence == fence:
                marked = lock._replace(linger_until=until)
                await self._store.put(subject, _LOCK, marked, sequence)

    async def end_lingering(self, stopped: Container[Fence]) -> int:
        """Free the locks of ended attempts whose handlers have stopped; return how many."""
        return await self._drop(lambda lock: lock.fence in stopped)

    async def end_lingering_of(self, session: SessionId) -> int:
        """Free the locks that linger for a session that was reaped; return how many."""
        return await self._drop(lambda lock: lock.session == session)

    async def end_overdue(self) -> int:
        """Free the locks that have lingered long enough; return how many."""
        now = self._store.time.now()
        return await self._drop(
            lambda lock: lock.linger_until is not None and lock.linger_until <= now
        )

    async def count_lingering(self, now: Instant) -> int:
        """Return how many locks count only because a handler may still run."""
        locks = [each.value for each in await self._all()]
        return sum((each.linger_until or 0) > now for each in locks)

    async def _drop(self, is_meant: Callable[[Lock], bool]) -> int:
        """Delete marked locks, unless their attempt is still the present one."""
        dropped = 0
        for subject, lock, sequence in await self._lingering.look():
            with self._store.passing_over():
                if is_meant(lock) and not await self._is_present(lock):
                    dropped += await self._delete(subject, sequence)
                    self._lingering.forget(subject)
        return dropped

    async def forget(self, limit: int) -> int:
        """Delete locks that no longer count, and that no renewal can bring back."""
        forgotten = 0
        for subject, lock, sequence in await self._all():
            if forgotten >= limit:
                break
            with self._store.passing_over():
                is_over = await self._sessions.is_over(lock.session)
                if is_over and await self._judge(lock) is None:
                    forgotten += await self._delete(subject, sequence)
        return forgotten

    # -- judging -------------------------------------------------------------------------------

    async def _judge(self, lock: Lock) -> Judged | None:
        """Return the holder of a lock that counts."""
        session = (await self._sessions.read(lock.session)).value
        name = "" if session is None else session.info.name
        job = None if lock.job is None else await self._job(lock.job)
        holder = LockHolder(
            lock.name, lock.session, lock.token, name, None if job is None else job.definition.id,
            lock.since,
        )  # fmt: skip
        time = self._store.time
        if _is_open(session, time.told()) and _is_attempt(lock, job):
            return Judged(holder, lingers=False)
        if lock.linger_until is not None and lock.linger_until > time.now():
            return Judged(holder, lingers=True)
        return None

    async def _is_present(self, lock: Lock) -> bool:
        return lock.job is not None and _is_attempt(lock, await self._job(lock.job))

    async def _job(self, held: Held) -> Current | None:
        found = await self._store.read(JobName(held.service, held.type, held.id))
        is_same = isinstance(found, Current) and found.definition.row == held.row
        return found if isinstance(found, Current) and is_same else None

    async def _claim_of(self, fence: Fence) -> Held | None:
        known = self._sessions.held.get(fence)
        return known or (await self._sessions.places(fence.session)).get(fence)

    async def _all(self) -> list[Listed]:
        return await latest(self._store, self._wanted, _LOCK)

    async def _delete(self, subject: str, sequence: int) -> bool:
        answer = await self._store.put(subject, _LOCK, None, sequence)
        if isinstance(answer, Outdated):
            return False
        with suppress(AccessDenied):  # a service may delete no message: an empty one is left
            await purge(self._store, subject, seq=answer.sequence + 1)
        return True

    def _subject(self, name: str) -> str:
        return self._store.subjects.value("lock", digest(name))


def _is_open(session: SessionValue | None, now: Instant) -> bool:
    return session is not None and session.ended_at is None and not session.is_lapsed(now)


def _is_attempt(lock: Lock, job: Current | None) -> bool:
    """Return whether the holder is a session, or the present attempt of its job."""
    if not lock.token:
        return True
    return job is not None and job.head.fence == lock.fence


class LockVerbs:
    """The part of the engine about locks."""

    _locks: LockTable

    async def take_lock(self, name: str, session: SessionId, token: int = 0) -> LockHolder | None:
        """Take a lock; None: it was taken."""
        return await self._locks.take(name, session, token)

    async def free_lock(self, name: str, session: SessionId, token: int = 0) -> bool:
        """Release a lock."""
        return await self._locks.free(name, session, token)

    async def locks(self) -> list[LockHolder]:
        """Return the holders of all valid locks, in order of name."""
        return await self._locks.holders()
