"""The audit of the JetStream engine: entries on one subject, each in the batch of its change.

The number of an entry is its sequence. Pages go back in time, so they are read in spans of
sequences that grow while too few entries are found.
"""

from __future__ import annotations

import json
from itertools import takewhile
from typing import Final

from trellis.core.durations import Micros
from trellis.engines.audit import AuditEntry, AuditFilter, By, Change
from trellis.engines.jetstream.link import Got
from trellis.engines.jetstream.state import purge, until_current
from trellis.engines.jetstream.store import Store

#: How many sequences the first step back covers, and how much larger each next one is.
_SPAN: Final = 1024
_GROWTH: Final = 4
_PAGE: Final = 256


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
            entries = map(_entry, await self._entries(start, end, newest))
            found += [entry for entry in reversed(list(entries)) if where.matches(entry)]
            end, span = start, span * _GROWTH
        return found[:limit]

    async def prune_audit(self, keep: Micros, limit: int) -> int:
        """Remove the oldest entries of the audit."""
        before = self._store.time.now() - keep
        link, stream = self._store.link, self._store.subjects.jobs
        first = map(_entry, await link.following(stream, self._audit, 1, limit))
        old = list(takewhile(lambda entry: entry.at < before, first))
        if old:
            await purge(self._store, self._audit, seq=old[-1].number + 1)
        return len(old)

    @property
    def _audit(self) -> str:
        return self._store.subjects.own("audit")

    async def _entries(self, start: int, end: int, newest: Got) -> list[Got]:
        """Return the entries from one sequence until before another."""

        async def read() -> list[Got]:
            found: list[Got] = []
            while True:
                since = found[-1].sequence + 1 if found else start
                page = await self._store.link.following(
                    self._store.subjects.jobs, self._audit, since, _PAGE
                )
                found += page
                if len(page) < _PAGE or page[-1].sequence >= end:
                    return found

        is_last = end > newest.sequence
        found = await until_current(read, newest if is_last else None)
        return [each for each in found if each.sequence < end]


def _entry(got: Got) -> AuditEntry:
    body = json.loads(got.body)
    # Another version of Trellis may have written an action that this one does not know.
    return AuditEntry(got.sequence, body["at"], Change(*body["change"]), By(*body["by"]))
