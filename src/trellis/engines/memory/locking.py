"""Locks of the memory engine: a row counts only while its holder does."""

from __future__ import annotations

import threading
from typing import NamedTuple

from trellis.core.job import Fence, JobId, SessionId
from trellis.core.spans import Instant
from trellis.engines.clock import Clock
from trellis.engines.locking import check_lock_name
from trellis.engines.memory.entries import SessionState, Tables
from trellis.engines.values import LockHolder, LockRecord


class Lock(NamedTuple):
    """Who took a lock, and when; whether it still counts is another question."""

    session: SessionId
    token: int
    since: Instant


class Locking:
    """The locks of the memory engine."""

    _clock: Clock
    _lock: threading.RLock
    _tables: Tables
    _locks: dict[str, Lock]

    def _is_lapsed(self, state: SessionState) -> bool:
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
            return None if (holder.session, holder.token) == (session, token) else holder

    async def free_lock(self, name: str, session: SessionId, token: int = 0) -> bool:
        """Give a lock back."""
        with self._lock:
            lock = self._locks.get(name)
            if lock is None or (lock.session, lock.token) != (session, token):
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
        state = None if lock is None else self._tables.sessions.get(lock.session)
        if lock is None or state is None or state.ended_at is not None or self._is_lapsed(state):
            return None
        job_id = self._job_of(lock)
        if lock.token and job_id is None:
            return None
        return LockHolder(name, lock.session, lock.token, state.info.name, job_id, lock.since)

    def _job_of(self, lock: Lock) -> JobId | None:
        fence = Fence(lock.session, lock.token)
        held = self._tables.held_by(lock.session)
        return next((each.definition.id for each in held if each.head.fence == fence), None)

    def _drop_locks(self, session: SessionId, *, all_of_them: bool) -> None:
        """Forget the locks of a session: all, or those of its attempts that are over."""
        for name, lock in list(self._locks.items()):
            if lock.session == session and (
                all_of_them or (lock.token and self._job_of(lock) is None)
            ):
                del self._locks[name]
