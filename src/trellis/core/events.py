"""Events: the entries of a job's journal.

An event records what changed; `fold` builds the head from a journal. Version 0 marks a note (a late
result that was refused): it changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from trellis.core.durations import Instant
from trellis.core.job import Fence, Head
from trellis.core.states import State

JsonValue: TypeAlias = (
    bool | int | float | str | list["JsonValue"] | Mapping[str, "JsonValue"] | None
)
Data: TypeAlias = Mapping[str, JsonValue]
#: Builds a named tuple from its fields in order and checks nothing; see `job.py`.
_make: Final = tuple.__new__


class EventKind(StrEnum):
    """The names of events on the wire and in the database."""

    CREATED = "created"
    STARTED = "started"
    RETRY = "retry"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCEL_REQUESTED = "cancelRequested"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"
    STALE = "stale"
    BLOCKED = "blocked"
    DEAD = "dead"
    RETRIED = "retried"
    ADJUSTED = "adjusted"
    RESOLVED = "resolved"
    DISMISSED = "dismissed"
    STALE_COMPLETION_IGNORED = "staleCompletionIgnored"


class Event(NamedTuple):
    """One entry of a journal."""

    kind: EventKind
    #: The version this event made; 0 for a note.
    version: int
    #: The state after it.
    state: State
    at: Instant
    #: The number of the attempt it is about.
    attempt: int
    #: The fence of the attempt it is about, if there is one.
    fence: Fence | None
    #: What `fold` and readers need beyond the other fields.
    data: Data | None


def build_event(  # noqa: PLR0917 - positional, because it is on the hot path
    kind: EventKind,
    version: int,
    state: State,
    at: Instant,
    attempt: int,
    fence: Fence | None,
    data: Data | None,
) -> Event:
    """Return an event, at half the cost of calling the class."""
    return _make(Event, (kind, version, state, at, attempt, fence, data))


def late_result(head: Head, at: Instant, fence: Fence, data: Data) -> Event:
    """Return the note that a result arrived after its attempt had ended; it changes nothing."""
    return Event(
        kind=EventKind.STALE_COMPLETION_IGNORED,
        version=0,
        state=head.state,
        at=at,
        attempt=head.attempt,
        fence=fence,
        data=data,
    )
