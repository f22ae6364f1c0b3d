"""Notes on SQLite: what attempts say about themselves, kept only while their fence holds."""

from __future__ import annotations

import json
from collections.abc import Sequence

from trellis.core.events import late_result
from trellis.core.timers import look_at
from trellis.engines.sql.rows import encode_ids, record_from
from trellis.engines.sqlite.transaction import Transaction, journal
from trellis.engines.values import (
    Begun,
    Heartbeat,
    Item,
    LateResult,
    LogLine,
    Note,
    NoteResult,
    Phase,
    Progress,
)


def note(tx: Transaction, notes: Sequence[Note]) -> list[NoteResult]:
    """Keep notes whose fence holds."""
    return [_note_one(tx, each) for each in notes]


def _note_one(tx: Transaction, note: Note) -> NoteResult:
    if isinstance(note.body, LateResult):
        return _journal_late(tx, note, note.body)
    row = tx.one("note_fence", note.row)
    if row is None or row != note.fence:
        return NoteResult.STALE
    _mark_seen(tx, note)
    _write(tx, note)
    return NoteResult.NOTED


def _mark_seen(tx: Transaction, note: Note) -> None:
    """Keep the sign of life, and look at the attempt later, where its policy watches activity."""
    row = tx.one("record_by_seq", encode_ids([note.row]))
    if row is not None:
        definition, head = record_from(row)
        if definition.policy.activity_timeout is not None:
            tx.run("note_seen", tx.now, look_at(definition, head, tx.now), note.row)
    kept = tx.one("note_claim", note.row)
    if kept is not None and kept[0] == note.claim:
        tx.run("note_touch", tx.now, note.row)
    else:
        tx.run("note_reset", note.row, note.claim, tx.now)
        tx.run("note_items_clear", note.row)


def _write(tx: Transaction, note: Note) -> None:
    match note.body:
        case Begun(at):
            tx.run("note_begun", at, note.row)
        case Progress() as progress:
            tx.run("note_progress", json.dumps(progress, ensure_ascii=False), note.row)
        case Phase(name):
            tx.run("note_phase", name, note.row)
            tx.run("note_items_clear", note.row)
        case Item(name, status, detail):
            tx.run("note_item", note.row, name, status, detail)
        case LogLine(level, message, fields):
            tx.run("note_log", note.row, tx.now, note.claim, level, message, fields)
        case Heartbeat() | LateResult():
            pass


def _journal_late(tx: Transaction, note: Note, late: LateResult) -> NoteResult:
    row = tx.one("record_by_seq", encode_ids([note.row]))
    if row is None:
        return NoteResult.STALE
    head = record_from(row).head
    if head.fence == note.fence:
        return NoteResult.STALE
    data = {"command": late.command, "detail": late.detail}
    journal(tx, note.row, late_result(head, tx.now, note.fence, data))
    return NoteResult.NOTED
