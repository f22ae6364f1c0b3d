"""Notes: what attempts report about themselves, kept only while their fence holds.

The rows of the jobs are locked first, so that no job can be settled between the check of its fence
and the note, nor between the check of its state and the event about a late result, which records
that state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trellis.core.events import EventKind
from trellis.core.timers import look_at
from trellis.engines.sql.rows import encode_data, record_from
from trellis.engines.sql.transaction import Transaction
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


class Found(NamedTuple):
    """A job that waits or runs, as `note_fence` returns it."""

    job: int
    session: int | None
    token: int | None
    #: Whether its policy may watch for silence.
    is_watched: bool
    attempt: int
    state: str


async def keep_notes(tx: Transaction, notes: Sequence[Note]) -> list[NoteResult]:
    """Keep the notes whose fence holds, and the late results of attempts whose fence does not."""
    found = await _lock(tx, {each.row for each in notes})
    late = {each.row for each in notes if isinstance(each.body, LateResult)}
    ended = await _lock_ended(tx, late - found.keys(), found)
    await tx.read_clock()
    kept: list[Note] = []
    results: list[NoteResult] = []
    for each in notes:
        job = found.get(each.row)
        is_current = _is_current(job, each)
        is_stored = is_current
        if isinstance(each.body, LateResult):
            last = (job.attempt, job.state) if job else ended.get(each.row)
            is_stored = last is not None and not is_current
            if last is not None and is_stored:
                await _journal_late(tx, each, each.body, *last)
        elif is_current:
            kept.append(each)
        results.append(NoteResult.NOTED if is_stored else NoteResult.STALE)
    if not found.keys().isdisjoint(late):
        tx.topics.add("ready")  # claims skip rows that are locked
    if kept:
        await _mark_seen(tx, kept, found)
        await _write(tx, kept)
    return results


def _is_current(job: Found | None, note: Note) -> bool:
    """Return whether the attempt that wrote a note still runs."""
    return job is not None and (job.session, job.token) == note.fence


async def _lock(tx: Transaction, jobs: Iterable[int]) -> dict[int, Found]:
    """Lock live jobs, always in the same order, so that transactions cannot deadlock."""
    rows = await tx.rows("note_fence", tx.array(sorted(jobs)))
    return {row[0]: Found(*row) for row in rows}


async def _lock_ended(
    tx: Transaction, jobs: set[int], found: dict[int, Found]
) -> dict[int, tuple[int, str]]:
    """Lock ended jobs; a job that was revived before the lock was granted is added to `found`."""
    if not jobs:
        return {}
    rows = await tx.rows("outcome_lock", tx.array(sorted(jobs)))
    found |= await _lock(tx, jobs)
    return {job: (attempt, state) for job, attempt, state in rows}


async def _mark_seen(tx: Transaction, notes: Sequence[Note], found: dict[int, Found]) -> None:
    """Keep the signs of life, and postpone the look at attempts whose policies watch activity."""
    claims = {each.row: each.claim for each in notes}
    jobs = [found[row] for row in claims if row in found]
    begun = {each.row: each.body.at for each in notes if isinstance(each.body, Begun)}
    touched = [(row, claim, tx.now, begun.get(row)) for row, claim in claims.items()]
    await tx.run_many("note_touch", touched)
    watched = sorted(job.job for job in jobs if job.is_watched)
    for row in await tx.rows("record_by_seq", tx.array(watched)) if watched else ():
        definition, head = record_from(row)
        if definition.policy.activity_timeout is not None:
            await tx.run("note_seen", tx.now, look_at(definition, head, tx.now), definition.row)


async def _write(tx: Transaction, notes: Sequence[Note]) -> None:
    logs: list[tuple[object, ...]] = []
    # The last report about each item: one statement cannot change a row twice.
    items: dict[tuple[object, ...], tuple[object, ...]] = {}
    for each in notes:
        match each.body:
            case LogLine(level, message, fields):
                logs.append((each.row, tx.now, each.claim, level, message, fields))
            case Progress() as progress:
                text = json.dumps(progress, ensure_ascii=False)
                await tx.run("note_progress", text, each.row)
            case Phase(name):
                await tx.run("note_phase", name, each.row)
            case Item(name, status, detail, phase):
                items[each.row, each.claim, phase, name] = (status, detail)
            case Begun() | Heartbeat() | LateResult():
                pass
    await tx.run_many("note_items", [(*item, *report) for item, report in items.items()])
    await tx.run_many("note_log", logs)


async def _journal_late(
    tx: Transaction, note: Note, late: LateResult, attempt: int, state: str
) -> None:
    data = encode_data({"command": late.command, "detail": late.detail})
    kind = EventKind.STALE_COMPLETION_IGNORED.value
    await tx.run("note_late", note.row, tx.now, *note.fence, attempt, state, kind, data)
