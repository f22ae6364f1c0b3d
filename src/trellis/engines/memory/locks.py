"""The locks of the memory engine: rows that are valid only while their holder is."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from trellis.core.durations import Instant
from trellis.core.job import Fence, JobId, SessionId
from trellis.core.lifecycle import Transition
from trellis.engines.memory.store import Store
from trellis.engines.values import LockHolder


class Lock(NamedTuple):
    """One taken lock; `LockTable` judges whether it is still valid."""

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
        """The session and token of the holder."""
        return Fence(self.session, self.token)


class LockTable:
    """All locks by name."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._locks: dict[str, Lock] = {}

    def take(self, name: str, session: SessionId, token: int) -> LockHolder | None:
        """Take a lock that is free or already the caller's; otherwise return its holder."""
        holder = self._holder(name)
        if holder is None:
            self._locks[name] = Lock(session, token, self._store.clock.now())
            holder = self._holder(name)
        if holder is None:
            # The caller's own session or attempt has ended, so its lock is not valid.
            taken = self._locks.pop(name)
            return LockHolder(name, session, token, "", None, taken.since)
        lock = self._locks[name]
        is_callers = lock.fence == (session, token) and lock.linger_until is None
        return None if is_callers else holder

    def free(self, name: str, session: SessionId, token: int) -> bool:
        """Release a lock of this holder."""
        lock = self._locks.get(name)
        if lock is None or lock.fence != (session, token):
            return False
        del self._locks[name]
        return True

    def holders(self) -> list[LockHolder]:
        """Return the holders of all valid locks, in order of name."""
        holders = (self._holder(name) for name in sorted(self._locks))
        return [holder for holder in holders if holder is not None]

    def _holder(self, name: str) -> LockHolder | None:
        """Return the holder of a lock; None if it is free or no longer valid."""
        lock = self._locks.get(name)
        if lock is None or not self._is_valid(lock):
            return None
        state = self._store.sessions.get(lock.session)
        worker = "" if state is None else state.info.name
        return LockHolder(name, *lock.fence, worker, self._job_of(lock), lock.since)

    def _is_valid(self, lock: Lock) -> bool:
        if lock.linger_until is not None:
            return not self._store.is_past(lock.linger_until, lock.boot_id)
        state = self._store.sessions.get(lock.session)
        if state is None or state.ended_at is not None or self._store.is_lapsed(state):
            return False
        return not lock.token or self._job_of(lock) is not None

    def _job_of(self, lock: Lock) -> JobId | None:
        if lock.linger_until is not None:
            entry = self._store.entries.get(lock.row)
            return None if entry is None else entry.definition.id
        held = self._store.held_by(lock.session)
        return next((each.definition.id for each in held if each.head.fence == lock.fence), None)

    def linger(self, transition: Transition, until: int) -> None:
        """Keep the locks of an attempt whose handler may still run."""
        boot_id, row = self._store.clock.boot_id(), transition.definition.row
        for name, lock in self._locks.items():
            if lock.fence == transition.before.fence:
                self._locks[name] = lock._replace(linger_until=until, boot_id=boot_id, row=row)

    def end_lingering(self, is_over: Callable[[Lock], bool]) -> int:
        """Drop lingering locks; return how many."""
        return self._drop(lambda lock: lock.linger_until is not None and is_over(lock))

    def drop_of(self, session: SessionId) -> None:
        """Drop the locks of a session, except the lingering ones."""
        self._drop(lambda lock: lock.session == session and lock.linger_until is None)

    def drop_stopped(self, session: SessionId, stopped: Container[Fence]) -> None:
        """Drop the locks of a session's attempts that have ended and whose handlers stopped."""
        self.end_lingering(lambda lock: lock.fence in stopped)
        self._drop(
            lambda lock: (
                lock.session == session
                and lock.token > 0
                and lock.linger_until is None
                and self._job_of(lock) is None
            )
        )

    def _drop(self, is_over: Callable[[Lock], bool]) -> int:
        over = [name for name, lock in self._locks.items() if is_over(lock)]
        for name in over:
            del self._locks[name]
        return len(over)
