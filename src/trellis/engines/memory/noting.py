"""What attempts say about themselves, kept by the memory engine."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from trellis.core.durations import Instant
from trellis.core.events import late_result
from trellis.engines.clock import Clock
from trellis.engines.memory.entries import Entry, Tables
from trellis.engines.values import (
    Activity,
    Begun,
    Heartbeat,
    Item,
    LateResult,
    LogEntry,
    LogLine,
    Note,
    NoteResult,
    Phase,
    Progress,
)


class Noting:
    """The `note` verb of the memory engine."""

    _clock: Clock
    _lock: threading.RLock
    _tables: Tables

    async def note(self, notes: Sequence[Note]) -> list[NoteResult]:
        """Keep notes whose fence holds."""
        with self._lock:
            return [self._note_one(note) for note in notes]

    def _note_one(self, note: Note) -> NoteResult:
        entry = self._tables.entries.get(note.row)
        now = self._clock.now()
        if entry is None:
            return NoteResult.STALE
        if isinstance(note.body, LateResult):
            return _journal_late(entry, note, note.body, now)
        if entry.head.fence != note.fence:
            return NoteResult.STALE
        if entry.definition.policy.activity_timeout is not None:
            entry.seen_at = now
        self._keep(entry, note, now)
        return NoteResult.NOTED

    def _keep(self, entry: Entry, note: Note, now: Instant) -> None:
        activity = entry.activity
        if activity is None or activity.claim != note.claim:
            activity = Activity(note.claim, None, None, None, None, ())
        activity = activity._replace(seen_at=now)
        match note.body:
            case Begun(at):
                activity = activity._replace(began_at=at)
            case Progress() as progress:
                activity = activity._replace(progress=progress)
            case Phase(name):
                activity = activity._replace(phase=name, progress=None, items=())
            case Item() as item:
                others = [each for each in activity.items if each.name != item.name]
                items = sorted([*others, item], key=lambda each: each.name)
                activity = activity._replace(items=tuple(items))
            case LogLine(level, message, fields):
                self._tables.last_log += 1
                number = self._tables.last_log
                entry.logs.append(LogEntry(number, now, note.claim, level, message, fields))
            case Heartbeat() | LateResult():
                pass
        entry.activity = activity


def _journal_late(entry: Entry, note: Note, late: LateResult, now: Instant) -> NoteResult:
    if entry.head.fence == note.fence:
        return NoteResult.STALE
    data = {"command": late.command, "detail": late.detail}
    entry.journal.append(late_result(entry.head, now, note.fence, data))
    return NoteResult.NOTED
