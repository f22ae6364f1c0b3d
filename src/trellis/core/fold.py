"""`fold`: the head that a journal leads to.

`fold(journal) == head` holds for every job on every engine; `trellis doctor` checks it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

from trellis.core.events import Event, EventKind
from trellis.core.job import Failure, Head, first_head


def fold(journal: Iterable[Event]) -> Head | None:
    """Return the head that these events, in order, lead to; None for an empty journal."""
    head: Head | None = None
    for event in journal:
        if event.version == 0:
            continue
        head = evolve(head, event)
    return head


def evolve(head: Head | None, event: Event) -> Head:  # noqa: C901 - one case per kind of event
    """Return the head after this event; raise `ValueError` for an event that cannot follow."""
    data: dict[str, Any] = dict(event.data or {})
    if head is None:
        return _first(event, data)
    if event.version != head.version + 1:
        raise ValueError(f"Version {event.version} cannot follow {head.version}.")
    error = Failure(*data["error"]) if "error" in data else head.error
    crashes = data.get("crashes", head.crashes)
    base = head._replace(version=event.version, state=event.state, error=error, crashes=crashes)
    match event.kind:
        case EventKind.STARTED:
            return base._replace(
                attempt=head.attempt + 1,
                claims=head.claims + 1,
                fence=event.fence,
                claimed_at=event.at,
            )
        case EventKind.CANCEL_REQUESTED:
            return base._replace(asked_at=event.at)
        case EventKind.ADJUSTED | EventKind.RESOLVED:
            return base._replace(run_at=data.get("run_at", head.run_at))
        case EventKind.BLOCKED:
            return base._replace(blocked=True)
        case EventKind.RETRY:
            return _at_rest(base)._replace(
                run_at=data["run_at"],
                attempt=data.get("attempt", head.attempt),
                suspect=data.get("suspect", False),
            )
        case EventKind.RETRIED:
            return _at_rest(base)._replace(
                run_at=event.at, generation=head.generation + 1, attempt=0, crashes=0, error=None
            )
        case EventKind.COMPLETED | EventKind.SKIPPED:
            return _at_rest(base)._replace(finished_at=event.at, error=None)
        case (
            EventKind.FAILED
            | EventKind.CANCELLED
            | EventKind.EXPIRED
            | EventKind.STALE
            | EventKind.DEAD
            | EventKind.DISMISSED
        ):
            return _at_rest(base)._replace(finished_at=event.at)
        case EventKind.CREATED | EventKind.STALE_COMPLETION_IGNORED:
            raise ValueError(f"{event.kind} cannot follow version {head.version}.")
        case unreachable:
            assert_never(unreachable)


def _first(event: Event, data: dict[str, Any]) -> Head:
    if event.kind is not EventKind.CREATED or event.version != 1:
        raise ValueError(f"A journal must begin with 'created' at version 1, not {event}.")
    run_at = data.get("run_at", event.at)
    return first_head(run_at)


def _at_rest(head: Head) -> Head:
    return head._replace(
        fence=None, claimed_at=None, asked_at=None, blocked=False, suspect=False, finished_at=None
    )
