"""Archives of the memory engine: which services archive, and which expired jobs wait for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trellis.core.batches import KEEP_MEMBERS
from trellis.core.durations import Instant
from trellis.core.job import JobRecord
from trellis.core.states import ENDED
from trellis.engines.archive import ERROR_LENGTH, Archived, ArchiveState, switch_of
from trellis.engines.audit import OPERATOR, By
from trellis.engines.clock import Clock

if TYPE_CHECKING:
    from trellis.engines.memory.store import Entry, Store


class Archives:
    """The archives of all services."""

    def __init__(self) -> None:
        self.states: dict[str, ArchiveState] = {}
        #: Of the jobs that wait, by row: since when, and their version then.
        self.waiting: dict[int, tuple[Instant, int]] = {}

    def is_current(self, entry: Entry) -> bool:
        """Return whether a job waits for its archive and has not run again."""
        found = self.waiting.get(entry.definition.row)
        return found is not None and found[1] == entry.head.version and entry.head.state in ENDED


class ArchiveVerbs:
    """The part of the memory engine that archives use."""

    _clock: Clock
    _lock: threading.RLock
    _store: Store

    def _drop(self, entry: Entry) -> None:
        raise NotImplementedError

    def _is_kept(self, job: Entry) -> bool:
        raise NotImplementedError

    async def declare_archive(self, service: str, by: By) -> bool:
        """Switch the archive of a service on if it was never switched."""
        with self._lock:
            is_new = service not in self._store.archives.states
            return is_new and await self.set_archive(service, on=True, by=by)

    async def set_archive(self, service: str, *, on: bool, by: By = OPERATOR) -> bool:
        """Switch the archive of a service."""
        with self._lock:
            states = self._store.archives.states
            before = states[service].is_on if service in states else None
            if before is on or (before is None and not on):
                return False
            states[service] = ArchiveState(service, on, self._clock.now())
            self._store.record(switch_of(service, before, on), by)
            return True

    async def archives(self) -> list[ArchiveState]:
        """Return the archives of all services."""
        with self._lock:
            found = []
            for service, state in sorted(self._store.archives.states.items()):
                rows = [each.definition.row for each in self._queue(service)[:1]]
                since = self._store.archives.waiting[rows[0]][0] if rows else None
                found.append(state._replace(waiting_since=since))
            return found

    async def note_archive(self, service: str, error: str | None) -> None:
        """Record that the archiver of a service failed, or that it works."""
        with self._lock:
            states = self._store.archives.states
            if service not in states:
                return
            state = states[service]
            if error is None:
                states[service] = state._replace(failing_since=None, failures=0, error=None)
                return
            states[service] = state._replace(
                failing_since=state.failing_since or self._clock.now(),
                failures=state.failures + 1,
                error=error[:ERROR_LENGTH],
            )

    async def archivable(self, service: str, limit: int) -> list[JobRecord]:
        """Return the next expired jobs of a service."""
        with self._lock:
            return [entry.record for entry in self._page(service, limit)]

    async def remove_archived(self, archived: Sequence[Archived]) -> int:
        """Remove the jobs that are still as they were archived."""
        with self._lock:
            removed = 0
            for job_id, version in archived:
                entry = self._store.by_id(job_id)
                if (
                    entry is not None
                    and self._store.archives.is_current(entry)
                    and entry.head.version == version
                ):
                    self._drop(entry)
                    removed += 1
            return removed

    def _expire(self, now: Instant, limit: int) -> int:
        """Remove expired jobs, or let them wait for the archive of their service."""
        archives = self._store.archives
        old = [each for each in self._store.past_retention(now) if not archives.is_current(each)]
        is_needed = self._store.dependencies.is_needed
        due = [each for each in old if not is_needed(each) and not self._is_kept(each)]
        for entry in old[:limit]:
            if self._is_kept(entry):
                entry.postponed_until = now + KEEP_MEMBERS
        for entry in due[:limit]:
            state = archives.states.get(entry.definition.service)
            if state is not None and state.is_on:
                archives.waiting[entry.definition.row] = now, entry.head.version
            else:
                self._drop(entry)
        moved = len(due[:limit])
        for service, state in sorted(archives.states.items()):
            if not state.is_on and moved < limit:
                left = self._page(service, limit - moved)
                moved += len(left)
                for entry in left:
                    self._drop(entry)
        return moved

    def _page(self, service: str, limit: int) -> list[Entry]:
        """Return the next jobs that wait; forget those before them that have run again."""
        archives = self._store.archives
        while True:
            entries = self._queue(service)[:limit]
            current = list(filter(archives.is_current, entries))
            for entry in entries:
                if entry not in current:
                    del archives.waiting[entry.definition.row]
            if current or not entries:
                return current

    def _queue(self, service: str) -> list[Entry]:
        """Return the jobs of a service that wait, in order of creation."""
        entries = [self._store.entries[row] for row in sorted(self._store.archives.waiting)]
        return [entry for entry in entries if entry.definition.service == service]
