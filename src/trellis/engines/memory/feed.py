"""The feed of the memory engine: the events of all jobs, numbered as they are written."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from trellis.core.events import Event
from trellis.engines.feed import (
    NOW,
    Changes,
    Cursor,
    Expired,
    FeedEntry,
    Horizon,
    Position,
    answer,
    expired,
    read_cursor,
    too_new,
)

if TYPE_CHECKING:
    from trellis.engines.memory.store import Entry, Store

_KIND: Final = "m"


class Feed:
    """All events that are kept, by number."""

    def __init__(self) -> None:
        self.events: dict[int, tuple[Entry, Event]] = {}
        self.last = 0
        self.horizon = Horizon()

    def update(self, entry: Entry) -> None:
        """Add the events of a job that are not in the feed yet."""
        if entry.is_held:
            return
        for event in entry.journal[len(entry.numbers) :]:
            self.last += 1
            entry.numbers.append(self.last)
            self.events[self.last] = entry, event

    def withhold(self, entry: Entry) -> None:
        """Take the events of a new job out, until the caller's transaction is committed."""
        while entry.numbers:
            del self.events[entry.numbers.pop()]

    def drop(self, entry: Entry) -> None:
        """Forget the events of a removed job, but not that they existed."""
        if not entry.numbers:
            return
        last = Position(0, entry.numbers[-1])
        if last > self.horizon.position:
            self.horizon = Horizon(last, entry.journal[-1].at)
        self.withhold(entry)

    def read(self, after: int, limit: int) -> list[tuple[Position, FeedEntry]]:
        """Return the next events after this number."""
        found: list[tuple[Position, FeedEntry]] = []
        for number in range(after + 1, self.last + 1):
            if len(found) == limit:
                break
            if number in self.events:
                entry, event = self.events[number]
                job = entry.definition
                part = (job.id, job.service, job.type, job.queue, job.tags, event)
                found.append((Position(0, number), FeedEntry("", *part)))
        return found


class FeedVerbs:
    """The part of the memory engine that reads the feed."""

    _lock: threading.RLock
    _store: Store

    async def changes(self, after: str | None = None, limit: int = 1000) -> Changes | Expired:
        """Return a page of the feed."""
        with self._lock:
            feed = self._store.feed
            end = Position(0, feed.last)
            if after is None or after == NOW:
                start = Position() if after is None else end
                cursor = Cursor(start, accepted=feed.horizon.position)
            else:
                cursor = read_cursor(_KIND, after)
            if cursor.position > end:
                return too_new(_KIND, feed.horizon)
            if cursor.has_lost(feed.horizon):
                return expired(_KIND, cursor, feed.horizon)
            found = feed.read(cursor.position.seq, limit)
            return answer(_KIND, cursor, found, end, is_last=len(found) < limit)
