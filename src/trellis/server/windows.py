"""The newest entries of a growing sequence, kept once for all streams that follow it.

A stream has a position and asks for what comes after it. A stream that is behind the window reads
the store instead, so a slow reader costs no memory here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

P = TypeVar("P", bound=Any)
T = TypeVar("T")


class Window(Generic[P, T]):
    """All entries after `start` up to `end`, in order, without gaps."""

    def __init__(self, start: P, keep: int) -> None:
        self.start = self.end = start
        self._keep = keep
        self._entries: list[tuple[P, T]] = []

    def add(self, entries: Sequence[tuple[P, T]], end: P) -> None:
        """Add what came after the end; `end` is the new one. Old entries are dropped by the way."""
        self._entries.extend(entries)
        self.end = end
        if len(self._entries) > 2 * self._keep:
            dropped = len(self._entries) - self._keep
            self.start = self._entries[dropped - 1][0]
            del self._entries[:dropped]

    def after(self, position: P, limit: int) -> list[tuple[P, T]] | None:
        """Return the first entries after a position; None: some of them are not kept any more."""
        if position < self.start:
            return None
        first = bisect_right(self._entries, position, key=itemgetter(0))
        return self._entries[first : first + limit]
