"""Notes on PostgreSQL: what attempts say about themselves, kept only while their fence holds.

The rows of the jobs are locked first, so none can be settled between the look at its fence and the
note; nor between the look at its state and a line about a late result, which tells that state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from trellis.core.events import EventKind
from trellis.core.timers import look_at
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql.rows import Row, encode_data, record_from
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


async def note(tx: Transaction, notes: Sequence[Note]) -> list[NoteResult]:
    """Keep notes whose fence holds."""
    found = await _lock(tx, {each.row for each in notes})
    late = {each.row for each in notes if isinstance(each.body, LateResult)}
    ended = await _lock_ended(tx, late - found.keys(), found)
    await tx.read_clock()  # after everything that happened to these jobs before
    kept: list[Note] = []
    results: list[NoteResult] = []
    for each in notes:
        row = found.get(each.row)
        is_current = row is not None and (row[1], row[2]) == each.fence
        if isinstance(each.body, LateResult):
            place = row[4:] if row is not None else ended.get(each.row)
            is_late = place is not None and not is_current
            results.append(NoteResult.NOTED if is_late else NoteResult.STALE)
            if place is not None and is_late:
                await _journal_late(tx, each, each.body, *place)
            continue
        results.append(NoteResult.NOTED if is_current else NoteResult.STALE)
        if is_current:
            kept.append(each)
    if not found.keys().isdisjoint(late):
        tx.topics.add("ready")  # a claim steps over what is locked
    if kept:
        await _mark_seen(tx, kept, {job for job, row in found.items() if row[3]})
        await _write(tx, kept)
    return results


async def _lock(tx: Transaction, jobs: Iterable[int]) -> dict[int, Row]:
    """Keep live jobs as they are; in one order, so that nobody waits for us in a circle."""
    return {row[0]: row for row in await tx.rows("note_fence", sorted(jobs))}


async def _lock_ended(tx: Transaction, jobs: set[int], found: dict[int, Row]) -> dict[int, Row]:
    """Keep ended jobs as they are; one that was revived meanwhile goes to `found`."""
    if not jobs:
        return {}
    ended = {row[0]: row[1:] for row in await tx.rows("outcome_lock", sorted(jobs))}
    found |= await _lock(tx, jobs)
    return ended


async def _mark_seen(tx: Transaction, notes: Sequence[Note], watched: set[int]) -> None:
    """Keep the signs of life, and look at attempts later whose policies watch activity."""
    claims = {each.row: each.claim for each in notes}
    await tx.rows("note_touch", list(claims), list(claims.values()), tx.now)
    silent = sorted(watched & claims.keys())
    for row in await tx.rows("record_by_seq", silent) if silent else ():
        definition, head = record_from(row)
        if definition.policy.activity_timeout is not None:
            await tx.rows("note_seen", tx.now, look_at(definition, head, tx.now), definition.row)


async def _write(tx: Transaction, notes: Sequence[Note]) -> None:
    logs: list[tuple[int, int, LogLine]] = []
    begun: dict[int, int] = {}
    for each in notes:
        match each.body:
            case LogLine() as line:
                logs.append((each.row, each.claim, line))
            case Begun(at):
                begun[each.row] = at
            case Progress() as progress:
                text = json.dumps(progress, ensure_ascii=False)
                await tx.rows("note_progress", text, each.row)
            case Phase(name):
                await tx.rows("note_phase", name, each.row)
                await tx.rows("note_items_clear", each.row)
            case Item(name, status, detail):
                await tx.rows("note_item", each.row, name, status, detail)
            case Heartbeat() | LateResult():
                pass
    if begun:
        await tx.rows("note_begun", list(begun), list(begun.values()))
    if logs:
        await tx.rows(
            "note_log",
            [row for row, _, _ in logs],
            tx.now,
            [claim for _, claim, _ in logs],
            [line.level for _, _, line in logs],
            [line.message for _, _, line in logs],
            [line.fields for _, _, line in logs],
        )


async def _journal_late(
    tx: Transaction, note: Note, late: LateResult, attempt: int, state: str
) -> None:
    data = encode_data({"command": late.command, "detail": late.detail})
    kind = EventKind.STALE_COMPLETION_IGNORED.value
    await tx.rows("event_full", note.row, 0, kind, state, tx.now, attempt, *note.fence, data)
