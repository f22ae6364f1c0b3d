"""The settings of queues as `create` and `claim` read them.

Settings hardly ever change, so they are not read for every call. This process hears of each change
by the live feed, and reads them again; without the feed, once a second.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from trellis.engines.jetstream.store import Store
from trellis.engines.operating import DrainChange
from trellis.engines.values import QueueSettings
from trellis.engines.wire import codec_of

T = TypeVar("T")
#: For how many seconds settings count as they were read.
_FRESH: Final = 1.0
QUEUE: Final = codec_of(QueueSettings)
DRAIN: Final = codec_of(DrainChange)


class CachedSettings(Generic[T]):
    """What was last read of settings."""

    def __init__(self, store: Store, read: Callable[[], Awaitable[T]]) -> None:
        self._store, self._read = store, read
        self._known: tuple[T, int, float] | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether nothing is known to have changed since it was read."""
        if self._known is None:
            return False
        _, changes, read_at = self._known
        return changes == self._store.setting_changes and time.monotonic() - read_at < _FRESH

    async def get(self) -> T:
        """Return what is known, read again if it may have changed."""
        if self._known is not None and self.is_fresh:
            return self._known[0]
        changes = self._store.setting_changes
        found = await self._read()
        self._known = found, changes, time.monotonic()
        return found


class Openness(NamedTuple):
    """Which of some queues accept no new jobs, and which let none be claimed."""

    draining: frozenset[tuple[str, str]]
    paused: frozenset[tuple[str, str]]
    #: No queue accepts anything new.
    all: bool

    def drains(self, queues: Iterable[tuple[str, str]]) -> bool:
        """Return whether any of these queues accepts no new jobs."""
        return self.all or not self.draining.isdisjoint(queues)

    @classmethod
    async def read(
        cls, store: Store, queues: Iterable[tuple[str, str]] = (("*", "*"),)
    ) -> Openness:
        """Read the settings of these queues; names may be wildcards."""
        own = store.subjects.own
        drain = own("setting", "drain")
        subjects = [own("setting", "queue", service, queue) for service, queue in queues]
        found = await store.link.last_many(store.subjects.jobs, [drain, *subjects])
        settings: list[QueueSettings] = []
        is_draining = False
        for got in found:
            if not got.body:
                continue
            if got.subject == drain:
                is_draining = store.parse(got, DRAIN).drain.on
            else:
                settings.append(store.parse(got, QUEUE))
        return cls(
            frozenset((each.service, each.queue) for each in settings if each.draining),
            frozenset((each.service, each.queue) for each in settings if each.paused),
            is_draining,
        )
