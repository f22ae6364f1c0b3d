"""The audit of the JetStream engine: entries on one subject, each in the batch of its change.

The number of an entry is its sequence. Pages go back in time, so they are read in spans of
sequences that grow while too few entries are found.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple, cast

from trellis.core.audit import Action
from trellis.core.durations import Instant, Micros
from trellis.core.events import JsonValue
from trellis.engines.audit import AuditEntry, AuditFilter, By, Change
from trellis.engines.jetstream.link import Got
from trellis.engines.jetstream.state import purge
from trellis.engines.jetstream.store import Store
from trellis.engines.wire import codec_of

#: How many sequences the first step back covers, and how much larger each next one is.
_SPAN: Final = 1024
_GROWTH: Final = 4
_PAGE: Final = 256


class _StoredChange(NamedTuple):
    """A change; its action may be one of another version of Trellis."""

    action: str
    target: str
    before: JsonValue = None
    after: JsonValue = None


@dataclass(frozen=True, slots=True)
class _StoredEntry:
    at: Instant
    change: _StoredChange
    by: By


_ENTRY: Final = codec_of(_StoredEntry)


class AuditVerbs:
    """The part of the engine that reads and prunes the audit."""

    _store: Store

    async def audit(
        self, where: AuditFilter, *, after: int | None = None, limit: int = 50
    ) -> list[AuditEntry]:
        """Return a page of the audit, the latest first."""
        link, stream, subject = self._store.link, self._store.subjects.jobs, self._audit
        newest = await link.last(stream, subject)
        oldest = await link.next(stream, subject, 1)
        if newest is None or oldest is None:
            return []
        end = newest.sequence + 1 if after is None else min(after, newest.sequence + 1)
        found: list[AuditEntry] = []
        span = _SPAN
        while end > oldest.sequence and len(found) < limit:
            start = max(oldest.sequence, end - span)
            for got in reversed(await self._entries(start, end)):
                with self._store.passing_over():
                    entry = self._entry(got)
                    found += [entry] if where.matches(entry) else []
            end, span = start, span * _GROWTH
        return found[:limit]

    async def prune_audit(self, keep: Micros, limit: int) -> int:
        """Remove the oldest entries of the audit."""
        before = self._store.time.now() - keep
        link, stream = self._store.link, self._store.subjects.jobs
        first = await link.following(stream, self._audit, 1, limit)
        old = list(takewhile(lambda got: self._at(got) < before, first))
        if old:
            await purge(self._store, self._audit, seq=old[-1].sequence + 1)
        return len(old)

    def _at(self, got: Got) -> Instant:
        """Return the time of an entry: as it says, or, if it cannot be read, as stored."""
        with self._store.passing_over():
            return self._entry(got).at
        return got.at

    def _entry(self, got: Got) -> AuditEntry:
        entry: _StoredEntry = self._store.parse(got, _ENTRY)
        action = cast("Action", entry.change.action)
        return AuditEntry(got.sequence, entry.at, Change(action, *entry.change[1:]), entry.by)

    @property
    def _audit(self) -> str:
        return self._store.subjects.own("audit")

    async def _entries(self, start: int, end: int) -> list[Got]:
        """Return the entries from one sequence until before another."""
        found: list[Got] = []
        while True:
            since = found[-1].sequence + 1 if found else start
            page = await self._store.link.following(
                self._store.subjects.jobs, self._audit, since, _PAGE
            )
            found += page
            if len(page) < _PAGE or page[-1].sequence >= end:
                return [each for each in found if each.sequence < end]
