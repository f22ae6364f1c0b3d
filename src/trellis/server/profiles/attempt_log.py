"""The log lines of workers that only speak HTTP: an attempt keeps as many as with other workers.

How many an attempt has is counted in the store, so that all servers of a store agree. A server
remembers how far it has counted, and reads only lines that are newer. Of the lines above the limit
it stores one that says how many were dropped, when these are 1, 10, 100 and so on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from trellis.core.job import Fence, JobRecord
from trellis.engines.port import Engine
from trellis.engines.values import LogEntry, LogLine
from trellis.worker.log import LINES_LIMIT

#: How many attempts a server process remembers.
_REMEMBERED: Final = 10_000
_PAGE: Final = 1000
_DROPPED: Final = "dropped"


@dataclass(slots=True)
class _Counted:
    """What one attempt has stored, as far as the log was read."""

    until: int = 0
    lines: int = 0
    dropped: int = 0

    def add(self, entry: LogEntry, claim: int) -> None:
        self.until = entry.number
        if entry.claim == claim:
            self.lines += 1
            self.dropped = max(self.dropped, _reported(entry))


class AttemptLogs:
    """Says which lines of an attempt are stored."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._counted: dict[Fence, _Counted] = {}

    async def limited(
        self, record: JobRecord, fence: Fence, lines: list[LogLine]
    ) -> tuple[list[LogLine], int]:
        """Return what is stored for these lines, and how many of them are dropped."""
        counted = await self._count(record, fence)
        room = max(0, LINES_LIMIT - counted.lines)
        kept, dropped = lines[:room], len(lines[room:])
        before, counted.dropped = counted.dropped, counted.dropped + dropped
        if len(str(counted.dropped)) > len(str(before)) or (dropped and not before):
            kept = [*kept, _note(counted.dropped)]
        return kept, dropped

    async def _count(self, record: JobRecord, fence: Fence) -> _Counted:
        if fence not in self._counted and len(self._counted) >= _REMEMBERED:
            del self._counted[next(iter(self._counted))]
        counted = self._counted.setdefault(fence, _Counted())
        while True:
            page = await self._engine.logs(record.definition.id, counted.until, _PAGE)
            for entry in page:
                counted.add(entry, record.head.claims)
            if len(page) < _PAGE:
                return counted


def _note(dropped: int) -> LogLine:
    text = f"An attempt keeps {LINES_LIMIT:,} lines; {dropped:,} more were dropped."
    return LogLine("warning", text, json.dumps({_DROPPED: dropped}))


def _reported(entry: LogEntry) -> int:
    """Return how many lines were dropped, if this one says so; else 0."""
    if entry.level != "warning" or not entry.message.startswith("An attempt keeps "):
        return 0
    number = json.loads(entry.fields or "{}").get(_DROPPED)
    return number if isinstance(number, int) else 0
