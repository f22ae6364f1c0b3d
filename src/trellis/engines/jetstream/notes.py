"""Notes of attempts: written while the fence of the attempt holds, read per job.

A note expects the last lifecycle event of its job, so an attempt that has ended cannot write one;
its own subject is outside of that expectation, so notes are not in the way of events. It does not
say either whether a note is stored already: a repetition is known by the id of its message.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

from trellis.core.durations import Instant
from trellis.core.job import JobId
from trellis.engines.jetstream.answers import MESSAGE_ID
from trellis.engines.jetstream.commit import Seen
from trellis.engines.jetstream.link import Expect, Got, Message, Written
from trellis.engines.jetstream.message import (
    UNREADABLE,
    StoredNote,
    decode_note,
    encode_note,
    note_name,
)
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.jetstream.writing import BATCH
from trellis.engines.values import (
    Activity,
    Begun,
    Heartbeat,
    Item,
    ItemEntry,
    LateResult,
    LogEntry,
    LogLine,
    Note,
    NoteResult,
    Phase,
    Progress,
)

_ALL: Final = 1_000_000


class NoteVerbs:
    """The part of the engine about notes."""

    _store: Store
    _seen: Seen

    async def note(self, notes: Sequence[Note]) -> list[NoteResult]:
        """Store notes whose fence holds."""
        results: dict[int, NoteResult] = {}
        by_attempt: dict[tuple[int, object], list[int]] = {}
        for index, note in enumerate(notes):
            if isinstance(note.body, LateResult):
                results[index] = await self._note_late(note)
            else:
                by_attempt.setdefault((note.row, note.fence), []).append(index)
        for indexes in by_attempt.values():
            for start in range(0, len(indexes), BATCH):
                part = indexes[start : start + BATCH]
                result = await self._note_all([notes[index] for index in part])
                results |= dict.fromkeys(part, result)
        return [results[index] for index in range(len(notes))]

    async def _note_all(self, notes: Sequence[Note]) -> NoteResult:
        """Store notes of one attempt, all or none."""
        row, fence, name = notes[0].row, notes[0].fence, secrets.token_hex(12)
        while True:
            current = await self._store.at_row(row)
            if current is None or current.head.fence != fence:
                return NoteResult.STALE
            messages = [self._message(current, note) for note in notes]
            messages[0] = self._once(messages[0], current, name)
            if isinstance(await self._store.link.write(*messages), Written):
                return NoteResult.NOTED

    async def _note_late(self, note: Note) -> NoteResult:
        """Journal that an old attempt tried to settle, with the state that the job has then."""
        name = secrets.token_hex(12)
        while True:
            current = await self._store.at_row(note.row)
            if current is None or current.head.fence == note.fence:
                return NoteResult.STALE
            message = self._once(self._message(current, note), current, name)
            if isinstance(await self._store.link.write(message), Written):
                return NoteResult.NOTED

    def _once(self, message: Message, current: Current, name: str) -> Message:
        """Return the message so that it is stored at most once, while the job is as it is."""
        expect = Expect(current.sequence, self._store.subjects.fence(current.job))
        return message._replace(headers={**message.headers, MESSAGE_ID: name}, expect=expect)

    def _message(self, current: Current, note: Note) -> Message:
        at = max(self._store.time.now(), current.at)
        wire = encode_note(*current.record, note, at)
        subject = self._store.subjects.note(current.job, note_name(note.body), note.claim)
        return Message(subject, wire.body, wire.headers)

    # -- reading -------------------------------------------------------------------------------

    def _filter(self, current: Current, name: str, claim: int | None = None) -> str:
        """Return the filter over the notes of one kind about a job: of one attempt, or of all."""
        last = "*" if claim is None else str(claim)
        return f"{self._store.subjects.fence(current.job).removesuffix('*')}{name}.{last}"

    async def _notes(
        self, current: Current, wanted: str, after: int = 0, limit: int = _ALL
    ) -> list[StoredNote]:
        """Return the notes that a filter matches, oldest first."""
        since = max(current.definition.row, after + 1)
        found = await self._store.link.following(self._store.subjects.jobs, wanted, since, limit)
        notes = (_decode(current, got) for got in found)
        return [note for note in notes if note is not None]

    async def activity(self, job_id: JobId) -> Activity | None:
        """Return what the latest attempt reported about itself."""
        current = await self._store.job(job_id)
        if current is None:
            return None
        claim = current.head.claims
        notes = await self._notes(current, self._filter(current, "progress", claim))
        # Of heartbeats and log lines, the last one says when the attempt was seen.
        for name in ("heartbeat", "logged"):
            got = await self._store.link.last(
                self._store.subjects.jobs, self._filter(current, name, claim)
            )
            if got is not None and got.sequence > current.definition.row:
                note = _decode(current, got)
                notes += [] if note is None else [note]
        activity: Activity | None = None
        items: dict[tuple[str, str], Item] = {}
        for note in sorted(notes, key=lambda each: each.sequence):
            activity = _updated(activity or Activity(claim, None, None, None, None, ()), note)
            if isinstance(note.body, Item):
                items[note.body.phase, note.body.name] = note.body
        if activity is None:
            return None
        return activity._replace(items=tuple(item for _, item in sorted(items.items())))

    async def items(self, job_id: JobId) -> list[ItemEntry]:
        """Return the items of all attempts of a job."""
        current = await self._store.job(job_id)
        if current is None:
            return []
        items = {
            (note.claim, note.body.phase, note.body.name): note.body
            for note in await self._notes(current, self._filter(current, "progress"))
            if isinstance(note.body, Item)
        }
        return [ItemEntry(at[0], item) for at, item in sorted(items.items())]

    async def logs(self, job_id: JobId, after: int = 0, limit: int = 1000) -> list[LogEntry]:
        """Return log lines numbered above `after`, oldest first."""
        current = await self._store.job(job_id)
        if current is None:
            return []
        return [
            LogEntry(note.sequence, note.at, note.claim, *note.body)
            for note in await self._notes(current, self._filter(current, "logged"), after, limit)
            if isinstance(note.body, LogLine)
        ]

    async def _seen_at(self, current: Current) -> Instant | None:
        """Return the last sign of life of the present attempt, if silence may end it."""
        if current.definition.policy.activity_timeout is None:
            return None
        activity = await self.activity(current.job.id)
        return None if activity is None else activity.seen_at


def _decode(current: Current, got: Got) -> StoredNote | None:
    """Read a note; None for one that no reader understands, which must not hide the others."""
    try:
        return decode_note(current.job, got.sequence, got.body)
    except UNREADABLE:
        return None


def _updated(activity: Activity, note: StoredNote) -> Activity:
    """Return the activity with one more note of its attempt."""
    activity = activity._replace(seen_at=note.at)
    match note.body:
        case Begun(at):
            return activity._replace(began_at=at)
        case Progress() as progress:
            return activity._replace(progress=progress)
        case Phase(name):
            return activity._replace(phase=name, progress=None)
        case Item() | Heartbeat() | LogLine() | LateResult():
            return activity
