"""Locks of the memory engine: a row counts only while its holder does, or its handler may."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from typing import NamedTuple

from trellis.core.durations import Instant
from trellis.core.job import Fence, JobId, SessionId
from trellis.core.lifecycle import Transition
from trellis.engines.clock import Clock
from trellis.engines.memory.entries import SessionState, Tables
from trellis.engines.values import LockHolder, LockRecord, check_lock_name


class Lock(NamedTuple):
    """Who took a lock, and when; whether it still counts is another question."""

    session: SessionId
    token: int
    since: Instant
    #: Set when the attempt was ended from outside: until then (lease clock, in the boot named
    #: beside it) the lock stays held, in the name of the job in this row.
    linger_until: int | None = None
    boot_id: str = ""
    row: int = 0

    @property
    def fence(self) -> Fence:
        """Who holds it."""
        return Fence(self.session, self.token)


class Locking:
    """The locks of the memory engine."""

    _clock: Clock
    _lock: threading.RLock
    _tables: Tables
    _locks: dict[str, Lock]

    def _is_lapsed(self, state: SessionState) -> bool:
        raise NotImplementedError

    def _is_past(self, until: int, boot_id: str) -> bool:
        raise NotImplementedError

    async def take_lock(self, name: str, session: SessionId, token: int = 0) -> LockHolder | None:
        """Take a lock that is free or ours; else say who has it."""
        check_lock_name(name)
        with self._lock:
            holder = self._holder(name)
            if holder is None:
                self._locks[name] = Lock(session, token, self._clock.now())
                holder = self._holder(name)
            if holder is None:
                # We are over ourselves.
                taken = self._locks.pop(name)
                return LockHolder(name, session, token, "", None, taken.since)
            lock = self._locks[name]
            is_ours = lock.fence == (session, token) and lock.linger_until is None
            return None if is_ours else holder

    async def free_lock(self, name: str, session: SessionId, token: int = 0) -> bool:
        """Give a lock back."""
        with self._lock:
            lock = self._locks.get(name)
            if lock is None or lock.fence != (session, token):
                return False
            del self._locks[name]
            return True

    async def locks(self) -> list[LockRecord]:
        """List the locks that count now."""
        with self._lock:
            holders = (self._holder(name) for name in sorted(self._locks))
            return [holder for holder in holders if holder is not None]

    def _holder(self, name: str) -> LockHolder | None:
        """Return who holds a lock; None if nobody does (any more)."""
        lock = self._locks.get(name)
        if lock is None or not self._counts(lock):
            return None
        state = self._tables.sessions.get(lock.session)
        worker = "" if state is None else state.info.name
        return LockHolder(name, *lock.fence, worker, self._job_of(lock), lock.since)

    def _counts(self, lock: Lock) -> bool:
        if lock.linger_until is not None:
            return not self._is_past(lock.linger_until, lock.boot_id)
        state = self._tables.sessions.get(lock.session)
        if state is None or state.ended_at is not None or self._is_lapsed(state):
            return False
        return not lock.token or self._job_of(lock) is not None

    def _job_of(self, lock: Lock) -> JobId | None:
        if lock.linger_until is not None:
            entry = self._tables.entries.get(lock.row)
            return None if entry is None else entry.definition.id
        held = self._tables.held_by(lock.session)
        return next((each.definition.id for each in held if each.head.fence == lock.fence), None)

    def _linger_locks(self, transition: Transition, until: int) -> None:
        """Keep the locks of an attempt whose handler may run on."""
        boot_id, row = self._clock.boot_id(), transition.definition.row
        for name, lock in self._locks.items():
            if lock.fence == transition.before.fence:
                self._locks[name] = lock._replace(linger_until=until, boot_id=boot_id, row=row)

    def _end_lingering_locks(self, is_over: Callable[[Lock], bool]) -> int:
        """Forget lingering locks; return how many."""
        return self._drop_locks(lambda lock: lock.linger_until is not None and is_over(lock))

    def _drop_outlived_locks(self, session: SessionId, stopped: Container[Fence]) -> None:
        """Forget the locks of a session's attempts that are over and have stopped."""
        self._end_lingering_locks(lambda lock: lock.fence in stopped)
        self._drop_locks(
            lambda lock: (
                lock.session == session
                and lock.token > 0
                and lock.linger_until is None
                and self._job_of(lock) is None
            )
        )

    def _drop_locks(self, is_over: Callable[[Lock], bool]) -> int:
        over = [name for name, lock in self._locks.items() if is_over(lock)]
        for name in over:
            del self._locks[name]
        return len(over)
