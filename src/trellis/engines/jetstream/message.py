"""Messages about jobs: an event that carries the head after it, and notes of attempts.

The body is one JSON object: the fields of a job event as other programs read them, and an object
`trellis` with what this engine needs to build the same values again. `created` has the definition;
the last lifecycle event has the head, and what has changed in the definition since. Payload and
result are the very text that was given: it is the last member of the body, and the header
`Trellis-Raw` says at which byte it begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from trellis.core.durations import SECOND, Instant, to_datetime, to_instant
from trellis.core.events import Event, EventKind, late_result
from trellis.core.job import (
    Definition,
    Fence,
    Head,
    JobId,
    JobRecord,
    NewJob,
    Prerequisite,
    Relations,
)
from trellis.core.lifecycle import Transition
from trellis.core.policy import Policy, in_force
from trellis.core.states import State
from trellis.engines.jetstream.subjects import JobName
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
from trellis.engines.wire import codec_of, dump

RAW: Final = "Trellis-Raw"
AT: Final = "Trellis-At"
#: The last event of a job that was removed; it is no event of the lifecycle.
REMOVED: Final = "removed"
#: Says that others wait for the end of the job. It has the fence of the job, so that an end which
#: was decided without it is refused; it is no event of the lifecycle.
WATCHED: Final = "watched"

#: What `decode` and `decode_note` raise for a body that this version cannot read.
UNREADABLE: Final = (
    ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip

_FIRST: Final = to_instant(datetime.min.replace(tzinfo=UTC))
_LAST: Final = to_instant(datetime.max.replace(tzinfo=UTC))
#: After the fields that other programs read; within a text, its quotes would be escaped.
_OWN: Final = ',"trellis":'
_decode_at: Final = json.JSONDecoder().raw_decode
_HEAD: Final = codec_of(Head)
_EVENT: Final = codec_of(Event)
_DEFINITION: Final = codec_of(Definition)
_BODY: Final = codec_of(NoteBody)
_FENCE: Final = codec_of(Fence)
_NUMBER: Final = codec_of(int)
_NOTE_NAMES: Final[Mapping[type, str]] = {
    Begun: "progress",
    Progress: "progress",
    Phase: "progress",
    Item: "progress",
    LogLine: "logged",
    Heartbeat: "heartbeat",
    LateResult: EventKind.STALE_COMPLETION_IGNORED.value,
}


#: Levels of log lines as programs in other languages know them; the others are `info`.
LEVELS: Final[Mapping[str, str]] = {"warning": "warn", "error": "error", "critical": "error"}


class Wire(NamedTuple):
    """A message as it is sent."""

    headers: dict[str, str]
    body: bytes


class Redefined(NamedTuple):
    """What differs from the definition at creation; None: nothing does."""

    queue: str | None = None
    priority: int | None = None
    attempts: int | None = None
    policy: Policy | None = None
    relations: Relations | None = None


class Request(NamedTuple):
    """What a job was created with, beside its definition."""

    #: The policy of its type as its creator knew it.
    policy: Policy
    idempotency_key: str | None = None
    after: tuple[Prerequisite, ...] = ()
    #: Its place in the order of creation among the jobs of its key.
    order: int = 0


class _SentRequest(NamedTuple):
    """A request as it is sent; no policy: that of the definition."""

    policy: Policy | None
    idempotency_key: str | None = None
    after: tuple[Prerequisite, ...] = ()
    order: int = 0


_REDEFINED: Final = codec_of(Redefined)
_REQUEST: Final = codec_of(_SentRequest)
_UNCHANGED: Final = Redefined()
_redefinable: Final = attrgetter(*Redefined._fields)


class Created(NamedTuple):
    """The definition of a job as it was accepted; its row is the sequence of `created`."""

    definition: Definition
    request: Request
    #: Nothing had its id when it was stored: the server has checked that.
    is_sole: bool = False


class StoredEvent(NamedTuple):
    """A lifecycle event as it was read."""

    job: JobName
    sequence: int
    #: The sequence of the job's `created`.
    row: int
    #: None: the job is watched from here on; its head and its journal stay as they were.
    event: Event | None
    head: Head
    redefined: Redefined
    #: When the journal last changed.
    at: Instant
    #: Other jobs or batches wait for its end: `watch.<id>` of the own state says which.
    is_watched: bool
    started_at: Instant | None
    #: The result in `completed`, the payload in `created` and in a `resolved` that has one.
    raw: str | None
    created: Created | None


class StoredRemoval(NamedTuple):
    """The last event of a removed job as it was read."""

    job: JobName
    sequence: int
    row: int
    at: Instant
    state: State


class StoredNote(NamedTuple):
    """A note as it was read."""

    job: JobName
    sequence: int
    row: int
    at: Instant
    claim: int
    fence: Fence
    body: NoteBody
    #: A late result is an event of the journal.
    event: Event | None


Stored: TypeAlias = StoredEvent | StoredRemoval

# -- lifecycle events --------------------------------------------------------------------------


def request_of(new: NewJob, order: int = 0) -> Request:
    """Return what a job is created with, beside its definition."""
    return Request(new.policy, new.idempotency_key, new.after, order)


def encode_created(
    new: NewJob, definition: Definition, event: Event, head: Head, order: int = 0, *,
    replaced: JobId | None = None,
) -> Wire:  # fmt: skip
    """Return the first message of a job. The row of the definition is not sent.

    `order` is its place among the jobs of its key, `replaced` the waiting job whose place it takes.
    """
    # Most requests have the policy of the definition: it is sent once.
    policy = None if new.policy == definition.policy else new.policy
    request = _SentRequest(policy, new.idempotency_key, new.after, order)
    bare = definition._replace(row=0, payload="")
    own = {
        "definition": _DEFINITION.write(bare),
        "request": _REQUEST.write(request),
    } | _own(event, head)
    fields = _fields(definition, None, event, head)
    if definition.key is not None:
        fields["queuePolicy"] = {"outcome": "accepted" if replaced is None else "replaced"}
        if replaced is not None:
            fields["queuePolicy"]["replacedJobId"] = replaced
    return _wire(definition, event.at, fields, own, "payload", definition.payload)


def encode_transition(
    transition: Transition, first: Definition, *, is_watched: bool = False, back: int = 0
) -> Wire:
    """Return the message of a decision; `first` is the definition at creation.

    In a batch that creates the job, `created` is so many messages back, and the row is not known.
    """
    definition, before, command, event, head = transition
    own: dict[str, Any] = {"back": back} if back else {"row": definition.row}
    own |= _own(event, head) | _changed(definition, first, is_watched)
    started_at = getattr(command, "started_at", None)
    if started_at is not None:
        own["startedAt"] = started_at
    member, raw = "result", getattr(command, "result", None)
    if event.kind is EventKind.RESOLVED:
        member, raw = "payload", getattr(command, "payload", None)
    fields = _fields(definition, before, event, head)
    return _wire(definition, event.at, fields, own, member, raw)


def encode_watch(record: JobRecord, first: Definition, at: Instant, *, back: int = 0) -> Wire:
    """Return the message after which the job is watched; `at`: when its journal last changed."""
    definition, head = record
    place: dict[str, Any] = {"back": back} if back else {"row": definition.row}
    own: dict[str, Any] = place | {"head": _HEAD.write(head), "at": at}
    fields = _names(definition, WATCHED, at) | {"state": head.state.value, "tries": head.attempt}
    own |= _changed(definition, first, True)
    return _wire(definition, at, fields, own)


def _changed(definition: Definition, first: Definition, is_watched: bool) -> dict[str, Any]:  # noqa: FBT001
    changed = redefinition(definition, first)
    own: dict[str, Any] = {"watched": True} if is_watched else {}
    return own if changed == _UNCHANGED else own | {"redefined": _REDEFINED.write(changed)}


def encode_removal(record: JobRecord, at: Instant) -> Wire:
    """Return the message that ends the stream of a removed job."""
    definition, head = record
    own = {"row": definition.row, "at": at, "state": head.state.value}
    fields = _names(definition, REMOVED, at) | {"state": head.state.value}
    return _wire(definition, at, fields, own)


def decode(job: JobName, sequence: int, headers: Mapping[str, str], body: bytes) -> Stored:
    """Read a lifecycle event, or a removal; raise one of `UNREADABLE` for anything else."""
    own, raw = _read(headers, body)
    row = _row_in(own, sequence)
    if "head" not in own:
        at = _NUMBER.decode(own["at"])
        return StoredRemoval(job, sequence, row, at, State(own["state"]))
    head = _HEAD.decode(own["head"])
    event = _EVENT.decode(own["event"]) if "event" in own else None
    is_first = event is not None and event.kind is EventKind.CREATED
    created = _read_created(own, sequence, raw) if is_first else None
    if created is not None and (row, name_of(created.definition)) != (sequence, job):
        raise ValueError("it is the first message of another job")
    redefined = _REDEFINED.decode(own["redefined"]) if "redefined" in own else _UNCHANGED
    return StoredEvent(
        job, sequence, row, event, head, redefined,
        _NUMBER.decode(own["at"]) if event is None else event.at, bool(own.get("watched")),
        _NUMBER.decode(own["startedAt"]) if "startedAt" in own else None, raw, created,
    )  # fmt: skip


def _row_in(own: Mapping[str, Any], sequence: int) -> int:
    """Return the sequence of the first message of the job that a message says it is about."""
    row: int = _NUMBER.decode(own.get("row", sequence - own.get("back", 0)))
    if not 0 < row <= sequence:
        raise ValueError(f"row: {row} is no message before it")
    return row


def _read_created(own: Mapping[str, Any], sequence: int, payload: str | None) -> Created:
    definition = _DEFINITION.decode(own["definition"])
    sent = _REQUEST.decode(own["request"])
    request = Request(sent.policy or definition.policy, *sent[1:])
    return Created(definition._replace(row=sequence, payload=payload or ""), request)


def redefinition(definition: Definition, first: Definition) -> Redefined:
    """Return in what a definition differs from the one at creation; the payload is not in it."""
    before, after = _redefinable(first), _redefinable(definition)
    if before == after:
        return _UNCHANGED
    pairs = zip(before, after, strict=True)
    return Redefined(*(None if old == new else new for old, new in pairs))


def record_of(created: Created, latest: StoredEvent, payload: str | None = None) -> JobRecord:
    """Return the job; `payload` is the one that was handed on to it, if there is one."""
    changes: dict[str, Any] = {}
    if latest.redefined is not _UNCHANGED:
        changes = {
            name: value for name, value in latest.redefined._asdict().items() if value is not None
        }
    if payload is not None:
        changes["payload"] = payload
    definition = created.definition._replace(**changes) if changes else created.definition
    return JobRecord(definition, latest.head)


def first_policy(created: Created, policy: Policy) -> Policy:
    """Return the policy in force of an unclaimed job, when its type is declared with this one."""
    definition = created.definition
    return in_force(policy, None, definition.attempts, definition.timeout)


# -- notes -------------------------------------------------------------------------------------


def note_name(body: NoteBody) -> str:
    """Return the token by which the subject of a note names its kind."""
    return _NOTE_NAMES[type(body)]


def encode_note(
    definition: Definition,
    head: Head,
    note: Note,
    at: Instant,
    *,
    back: int = 0,
    event: Event | None = None,
) -> Wire:
    """Return the message of a note about this job.

    In a batch that creates the job, `created` is so many messages back, and the row is not known.
    `event` is that of a late result, if it is known already.
    """
    place: dict[str, Any] = {"back": back} if back else {"row": definition.row}
    own: dict[str, Any] = place | {
        "at": at,
        "claim": note.claim,
        "fence": note.fence,
        "note": _BODY.write(note.body),
    }
    fields = _names(definition, note_name(note.body), at) | {
        "state": head.state.value,
        "tries": head.attempt,
    }
    match note.body:
        case LateResult(command, detail):
            data = {"command": command, "detail": detail}
            own["event"] = _EVENT.write(event or late_result(head, at, note.fence, data))
        case LogLine(level, message):
            fields["logs"] = [
                {"timestamp": _iso(at), "level": LEVELS.get(level, "info"), "message": message}
            ]
        case Progress() as progress:
            shown = progress._asdict().items()
            fields["progress"] = {name: value for name, value in shown if value is not None}
        case Begun() | Heartbeat() | Phase() | Item():
            pass
    return _wire(definition, at, fields, own)


def decode_note(job: JobName, sequence: int, body: bytes) -> StoredNote:
    """Read a note; raise one of `UNREADABLE` for anything else."""
    own = json.loads(body)["trellis"]
    event = _EVENT.decode(own["event"]) if "event" in own else None
    at, claim = _NUMBER.decode(own["at"]), _NUMBER.decode(own["claim"])
    return StoredNote(
        job, sequence, _row_in(own, sequence), at, claim, _FENCE.decode(own["fence"]),
        _BODY.decode(own["note"]), event,
    )  # fmt: skip


# -- parts of a body ---------------------------------------------------------------------------


def _own(event: Event, head: Head) -> dict[str, Any]:
    return {"event": _EVENT.write(event), "head": _HEAD.write(head)}


def _names(definition: Definition, event: str, at: Instant) -> dict[str, Any]:
    context = definition.context
    shown: dict[str, Any] = {
        "requestId": context.request_id,
        "traceId": context.trace_id,
        "traceparent": context.traceparent,
    }
    if context.tracestate is not None:
        shown["tracestate"] = context.tracestate
    return {
        "jobId": definition.id,
        "context": shown,
        "service": definition.service,
        "jobType": definition.type,
        "eventType": event,
        "timestamp": _iso(at),
    }


def _fields(
    definition: Definition, before: Head | None, event: Event, head: Head
) -> dict[str, Any]:
    """Return the fields of an event that other programs read."""
    fields = _names(definition, event.kind.value, event.at)
    fields |= {"state": head.state.value, "tries": head.attempt}
    if before is not None:
        fields["previousState"] = before.state.value
    if head.error is not None:
        fields["error"] = head.error.message
    if definition.deadline_at is not None:
        fields["deadline"] = _iso(definition.deadline_at)
    if definition.key is not None:
        fields["concurrency"] = {"key": definition.key, "keyHash": definition.key_hash}
        if head.fence is not None:
            fields["concurrency"]["slotToken"] = head.fence.attempt_id
    return fields


def _iso(at: Instant) -> str:
    """Return a moment as other programs read it; one beyond their calendar is its last or first."""
    second, rest = divmod(max(_FIRST, min(at, _LAST)), SECOND)
    return f"{_iso_second(second)}.{rest:06}Z"


@lru_cache(maxsize=64)
def _iso_second(second: int) -> str:
    return to_datetime(second * SECOND).isoformat(timespec="seconds").removesuffix("+00:00")


def _wire(  # noqa: PLR0917 - the parts of one message, in their order
    definition: Definition,
    at: Instant,
    fields: dict[str, Any],
    own: dict[str, Any],
    member: str = "",
    raw: str | None = None,
) -> Wire:
    context = definition.context
    headers = {
        "request-id": _header(context.request_id),
        "traceparent": _header(context.traceparent),
        AT: str(at),
    }
    if context.tracestate is not None:
        headers["tracestate"] = _header(context.tracestate)
    body = dump(fields | {"trellis": own})
    if raw is None:
        return Wire(headers, body)
    start = body[:-1] + b',"' + member.encode() + b'":'
    headers[RAW] = str(len(start))
    return Wire(headers, start + raw.encode() + b"}")


def _header(text: str) -> str:
    """Return a text as a header may have it: printable ASCII. The body has all of it."""
    if text.isascii() and text.isprintable():
        return text.strip()
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text).strip()


def _read(headers: Mapping[str, str], body: bytes) -> tuple[dict[str, Any], str | None]:
    """Return the part of a body that Trellis itself reads, and the text that was given."""
    text, offset = body.decode(), headers.get(RAW)
    own, _ = _decode_at(text, text.index(_OWN) + len(_OWN))
    return own, None if offset is None else body[int(offset) : -1].decode()


def name_of(definition: Definition | NewJob) -> JobName:
    """Return the tokens that name a job."""
    return JobName(definition.service, definition.type, JobId(definition.id))
