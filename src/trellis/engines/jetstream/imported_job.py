"""A job of another store as the messages that it has here.

The rows of a transfer are those of the SQL engines. The head after each event is what the journal
leads to up to there, so that a history keeps its times and its states. Notes come after the events:
of them, other stores keep the last values only.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from trellis.core.commands import Command
from trellis.core.durations import Instant
from trellis.core.events import Event, EventKind
from trellis.core.fold import evolve
from trellis.core.job import (
    Context,
    Definition,
    Fence,
    Head,
    JobId,
    JobRecord,
    NewJob,
    Prerequisite,
)
from trellis.core.lifecycle import Transition
from trellis.core.policy import Policy, decode_policy, in_force
from trellis.core.states import ENDED, State
from trellis.engines.jetstream.dependencies import Bond
from trellis.engines.jetstream.link import Message
from trellis.engines.jetstream.message import (
    Created,
    Request,
    Wire,
    encode_created,
    encode_note,
    encode_transition,
    name_of,
    note_name,
)
from trellis.engines.jetstream.store import Current
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.sql.rows import Row, decode_relations, decode_tags, dedupe_from, event_from
from trellis.engines.transfer import ExportedHead, ExportedJob, JobBatch
from trellis.engines.values import (
    Begun,
    Heartbeat,
    Item,
    LateResult,
    LogLine,
    Note,
    NoteBody,
    Phase,
    Progress,
)
from trellis.engines.wire import dump

_NO_FENCE: Final = Fence(cast("Any", 0), 0)


class Member(NamedTuple):
    """A job in a batch."""

    batch: str
    is_linked: bool
    #: None: it has not ended.
    succeeded: bool | None


class _End(NamedTuple):
    """What a message of an end has beside its event, by the names of the commands."""

    started_at: Instant | None
    result: str | None


class _Rows(NamedTuple):
    """The rows of one job."""

    job: ExportedJob
    head: ExportedHead | None
    mark: str | None
    outcomes: Mapping[int, Row]
    events: Sequence[Event]
    notes: Sequence[Row]
    items: Sequence[Row]
    logs: Sequence[Row]
    links: Sequence[Row]
    members: Sequence[Row]


class ImportedJob(NamedTuple):
    """A job of another store."""

    #: Its number there.
    row: int
    current: Current
    idempotency_key: str | None
    #: Waits, was claimed before and still holds its slot of the key.
    holds: bool
    is_resolved: bool
    bonds: tuple[Bond, ...]
    members: tuple[Member, ...]
    #: The messages of its life, and those of its notes, which begin at the number of the former.
    events: Sequence[Message]
    notes: Sequence[Message]

    @property
    def size(self) -> int:
        """About how many messages it takes, with what belongs to it."""
        beside = 4 + 2 * len(self.bonds) + 2 * len(self.members)
        return len(self.events) + len(self.notes) + beside


def read_batch(subjects: Subjects, batch: JobBatch) -> Iterator[ImportedJob]:
    """Return the jobs of a whole batch, in its order; raise `ValueError` for a broken journal."""
    heads = {head.row: head for head in batch.heads}
    marks = {row: str(mark) for row, mark in batch.marks}
    tables = [
        _by_job(getattr(batch, name))
        for name in ("outcomes", "events", "notes", "items", "logs", "links", "members")
    ]
    for job in batch.jobs:
        outcomes, events, *others = (table[job.row] for table in tables)
        yield _read(
            subjects,
            _Rows(
                job,
                heads.get(job.row),
                marks.get(job.row),
                {outcome[0]: outcome for outcome in outcomes},
                [_event(event) for event in events],
                *others,
            ),
        )


def located(message: Message, row: int) -> Message:
    """Return a note for a job that has this row by now."""
    body = json.loads(message.body)
    body["trellis"] = {"row": row} | {
        name: value for name, value in body["trellis"].items() if name != "back"
    }
    return message._replace(body=dump(body))


def _by_job(rows: Iterable[Row]) -> defaultdict[int, list[Row]]:
    found: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row[0]].append(row[1:])
    return found


def _event(row: Row) -> Event:
    version, kind, *rest = row
    return event_from((kind, version, *rest))


def definition_of(job: ExportedJob) -> Definition:
    """Return a job as it was accepted."""
    return Definition(
        row=0,
        id=job.id,
        service=job.service,
        type=job.type,
        queue=job.queue,
        payload=job.payload,
        policy=in_force(decode_policy(job.policy), None, job.attempts, job.timeout),
        context=Context(job.request_id or job.id, job.traceparent, job.tracestate),
        priority=job.priority,
        created_at=job.created_at,
        deadline_at=job.deadline_at,
        key=job.key,
        key_hash=job.key_hash,
        tags=decode_tags(job.tags),
        config=job.config,
        expect=job.expect,
        schema_version=job.schema_version,
        clone_of=None if job.clone_of is None else JobId(job.clone_of),
        dedupe=dedupe_from(
            job.dedupe, cast("Any", job.dedupe_while), job.dedupe_until, job.created_at
        ),
        attempts=job.attempts,
        timeout=job.timeout,
        relations=decode_relations(job.relations),
    )


def _read(subjects: Subjects, rows: _Rows) -> ImportedJob:
    first = definition_of(rows.job)
    text = None if rows.mark is None else rows.mark.split("/", 2)[2]
    bonds = tuple(
        Bond(JobId(other), on, None if ended is None else State(ended), generation or 0)
        for other, on, ended, generation in rows.links
    )
    after = tuple(Prerequisite(bond.prerequisite, bond.on) for bond in bonds)
    # Numbers of jobs in their old store are in the order of creation, and below those given here.
    order = 0 if first.key_hash is None else rows.job.row
    request = Request(decode_policy(rows.job.policy), text, after, order)
    messages, record = _Messages(subjects, rows, first, request).events()
    last = next(event for event in reversed(rows.events) if event.version)
    current = Current(
        name_of(first), Created(first, request), record, 0, is_watched=False, at=last.at
    )
    is_resolved = bool(record.head.claims) or any(
        event.kind is EventKind.RESOLVED for event in rows.events
    )
    return ImportedJob(
        rows.job.row,
        current,
        text,
        rows.head is not None and rows.head.holds,
        is_resolved or record.head.state in ENDED,
        bonds,
        tuple(
            Member(batch, bool(linked), bool(succeeded) if finished_at is not None else None)
            for batch, linked, _, succeeded, finished_at in rows.members
        ),
        messages,
        _Notes(subjects, rows, record, len(messages)).messages(),
    )


class _Messages:
    """The messages of the events of one job."""

    def __init__(
        self, subjects: Subjects, rows: _Rows, first: Definition, request: Request
    ) -> None:
        self._subjects, self._rows = subjects, rows
        self._first, self._request = first, request
        self._job = name_of(first)

    def events(self) -> tuple[list[Message], JobRecord]:
        """Return the messages, and the job after them."""
        messages: list[Message] = []
        head: Head | None = None
        definition = self._first
        for event in self._rows.events:
            back = len(messages)
            if head is not None and not event.version:
                messages.append(self._late(JobRecord(definition, head), event, back))
                continue
            after = evolve(head, event)
            definition = self._definition(after)
            wire = (
                self._created(event, after)
                if head is None
                else self._transition(definition, head, event, after, back)
            )
            subject = self._subjects.event(self._job, event.kind.value)
            messages.append(Message(subject, wire.body, wire.headers))
            head = after
        if head is None:
            raise ValueError(f"Job {self._first.id} has no journal.")
        return messages, JobRecord(definition, head)

    def _definition(self, head: Head) -> Definition:
        if not head.claims:
            return self._first
        return self._first._replace(policy=self._policy(head))

    def _policy(self, head: Head) -> Policy:
        """Return the policy in force after a claim: of its generation, as far as it is known."""
        outcome = self._rows.outcomes.get(head.generation)
        last = self._rows.head
        text = outcome[12] if outcome is not None else None if last is None else last.policy
        declared = None if text is None else decode_policy(text)
        return in_force(self._request.policy, declared, self._first.attempts, self._first.timeout)

    def _created(self, event: Event, head: Head) -> Wire:
        first, request = self._first, self._request
        new = NewJob(
            first.id, first.service, first.type, first.queue, first.payload, request.policy,
            first.context, idempotency_key=request.idempotency_key, after=request.after,
        )  # fmt: skip
        return encode_created(new, first, event, head, request.order)

    def _transition(
        self, definition: Definition, before: Head, event: Event, head: Head, back: int
    ) -> Wire:
        end = _End(None, None)
        outcome = self._rows.outcomes.get(head.generation)
        if outcome is not None and head.state in ENDED and head.state is not State.DISMISSED:
            end = _End(outcome[7], outcome[10])
        transition = Transition(definition, before, cast("Command", end), event, head)
        return encode_transition(transition, self._first, back=back)

    def _late(self, record: JobRecord, event: Event, back: int) -> Message:
        data = dict(event.data or {})
        body = LateResult(str(data.get("command", "")), cast("Any", data.get("detail")))
        note = Note(0, record.head.claims, event.fence or _NO_FENCE, body)
        wire = encode_note(*record, note, event.at, back=back, event=event)
        subject = self._subjects.note(self._job, note_name(body), note.claim)
        return Message(subject, wire.body, wire.headers)


class _Notes:
    """The messages of the notes of one job; `back` messages after `created` they begin."""

    def __init__(self, subjects: Subjects, rows: _Rows, record: JobRecord, back: int) -> None:
        self._subjects, self._rows, self._record, self._back = subjects, rows, record, back
        self._starts = [event for event in rows.events if event.kind is EventKind.STARTED]
        self._messages: list[Message] = []

    def messages(self) -> list[Message]:
        """Return them, attempt by attempt; what was last reported comes last."""
        rows = self._rows
        reports = {claim: report for claim, *report in rows.notes}
        claims = {*reports, *(item[0] for item in rows.items), *(line[1] for line in rows.logs)}
        for claim in sorted(claims):
            began_at, seen_at, progress, phase = reports.get(
                claim, (None, self._start(claim), None, None)
            )
            if began_at is not None:
                self._add(claim, seen_at, Begun(began_at))
            if phase is not None:
                self._add(claim, seen_at, Phase(phase))
            for _, of_phase, name, status, detail in (i for i in rows.items if i[0] == claim):
                self._add(claim, seen_at, Item(name, status, detail, of_phase))
            for at, _, level, message, fields in (line for line in rows.logs if line[1] == claim):
                self._add(claim, at, LogLine(level, message, fields))
            if claim in reports:
                told = None if progress is None else Progress(*json.loads(progress))
                self._add(claim, seen_at, told or Heartbeat())
        return self._messages

    def _start(self, claim: int) -> Instant:
        return self._starts[claim - 1].at if 0 < claim <= len(self._starts) else 0

    def _add(self, claim: int, at: Instant, body: NoteBody) -> None:
        fence = self._starts[claim - 1].fence if 0 < claim <= len(self._starts) else None
        note = Note(0, claim, fence or _NO_FENCE, body)
        back = self._back + len(self._messages)
        wire = encode_note(*self._record, note, at, back=back)
        subject = self._subjects.note(name_of(self._record.definition), note_name(body), claim)
        self._messages.append(Message(subject, wire.body, wire.headers))
