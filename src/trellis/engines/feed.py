"""The feed: all events of all jobs in commit order, read page by page from a cursor.

A cursor is text. Its first letter names the kind of engine; then comes a position, and after `~`
the position up to which lost events were accepted. Programs store it and pass it back.

Events of removed jobs are removed too. The engine keeps the position of the last of them, the
horizon: a cursor before the horizon has lost events, unless its reader has accepted that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from trellis.core.durations import Instant
from trellis.core.events import Event
from trellis.core.job import JobId
from trellis.errors import CursorInvalid

#: Given instead of a cursor: only what is committed from now on.
NOW: Final = "now"
_TEXT: Final = re.compile(r"([a-z])(\d{1,19})\.(\d{1,19})(?:~(\d{1,19})\.(\d{1,19}))?")


class Position(NamedTuple):
    """A place in the order of all events; no event is ever added before one that was returned.

    On PostgreSQL the number of the transaction comes first; it is 0 on engines with one writer.
    """

    xid: int = 0
    seq: int = 0


class Horizon(NamedTuple):
    """The last event that was removed, and when it happened; None: none was."""

    position: Position = Position()
    at: Instant | None = None


class Cursor(NamedTuple):
    """Where a reader of the feed stands."""

    position: Position = Position()
    #: Events up to here may be missing: the reader knows, or began after they were removed.
    accepted: Position = Position()

    def moved_to(self, position: Position) -> Cursor:
        """Return the cursor after the event at this position."""
        return Cursor(position, self.accepted)

    def has_lost(self, horizon: Horizon) -> bool:
        """Return whether events were removed that the reader had yet to see."""
        return horizon.position > max(self.position, self.accepted)


class FeedEntry(NamedTuple):
    """One event in the feed, and the job it happened to."""

    #: The cursor after this event.
    cursor: str
    job_id: JobId
    service: str
    type: str
    queue: str
    tags: tuple[tuple[str, str], ...]
    event: Event


class Changes(NamedTuple):
    """A page of the feed."""

    entries: tuple[FeedEntry, ...]
    #: Where the next page begins; everything before it was returned.
    cursor: str
    #: There was nothing more when the page was read.
    is_last: bool


class Expired(NamedTuple):
    """The events after the cursor are no longer complete; nothing was returned."""

    #: The same place, with the loss accepted.
    cursor: str
    #: When the last of the lost events happened; None: the store is older than the cursor.
    until: Instant | None


def write_cursor(kind: str, cursor: Cursor) -> str:
    """Return a cursor as text.

    >>> write_cursor("s", Cursor(Position(0, 7)))
    's0.7'
    """
    text = f"{kind}{cursor.position.xid}.{cursor.position.seq}"
    if cursor.accepted > cursor.position:
        text += f"~{cursor.accepted.xid}.{cursor.accepted.seq}"
    return text


def read_cursor(kind: str, text: str) -> Cursor:
    """Return the cursor in a text; raise `CursorInvalid` if it is none of this kind of engine.

    >>> read_cursor("p", "p12.7~13.9")
    Cursor(position=Position(xid=12, seq=7), accepted=Position(xid=13, seq=9))
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise CursorInvalid(
            f"{text!r} is not a cursor of the feed. Pass the cursor of a change, "
            '"now", or None for all events that are kept.'
        )
    if found[1] != kind:
        raise CursorInvalid(
            f"The cursor {text!r} belongs to another kind of engine. Cursors do not move with the "
            "jobs: read this engine from the beginning (None) or from now on."
        )
    numbers = [int(each or 0) for each in found.groups()[1:]]
    return Cursor(Position(*numbers[:2]), Position(*numbers[2:]))


def answer(
    kind: str,
    cursor: Cursor,
    found: Iterable[tuple[Position, FeedEntry | None]],
    end: Position,
    *,
    is_last: bool,
) -> Changes:
    """Return a page; after the last one, the cursor is at the end that was seen before reading.

    None stands for an event without a job, which is passed over.
    """
    entries = []
    for position, entry in found:
        cursor = cursor.moved_to(position)
        if entry is not None:
            entries.append(entry._replace(cursor=write_cursor(kind, cursor)))
    if is_last and end > cursor.position:
        cursor = cursor.moved_to(end)
    return Changes(tuple(entries), write_cursor(kind, cursor), is_last)


def expired(kind: str, cursor: Cursor, horizon: Horizon) -> Expired:
    """Return that the reader has lost events."""
    return Expired(write_cursor(kind, cursor._replace(accepted=horizon.position)), horizon.at)


def too_new(kind: str, horizon: Horizon) -> Expired:
    """Return that the cursor is of a later time than the store: a backup was restored."""
    return Expired(write_cursor(kind, Cursor(Position(), horizon.position)), None)
