"""C2: every event is an allowed step, and the journal has no gap.

The table is written from the design document, not taken from the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.harness.faults.checker.histories import Event, Histories
from tests.harness.faults.checker.violations import Violation, about

_RULE = "C2 state machine"

_WAITING: Final = ("pending", "retry")
_LIVE: Final = (*_WAITING, "active")
LATE: Final = "staleCompletionIgnored"

#: Event → the states it may come from, and those it may lead to.
STEPS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "created": ((), ("pending",)),
    "started": (_WAITING, ("active",)),
    "completed": (("active",), ("completed", "completed_with_errors")),
    "retry": (("active",), ("retry",)),
    "dead": (("active",), ("dead",)),
    "failed": (("active",), ("failed",)),
    "stale": (("active",), ("stale",)),
    "blocked": (("active",), ("active",)),
    "cancelRequested": (("active",), ("active",)),
    "cancelled": (_LIVE, ("cancelled",)),
    "expired": (_LIVE, ("expired",)),
    "skipped": (("pending",), ("skipped",)),
    "retried": (("failed", "dead"), ("pending",)),
    "dismissed": (("dead",), ("dismissed",)),
}


def check_states(histories: Histories) -> Iterator[Violation]:
    """Walk every journal."""
    for job, journal in histories.journals.items():
        state: str | None = None
        version = 0
        for event in journal:
            wrong = _wrong(event, state, version)
            if wrong:
                yield about(histories, _RULE, f"{job}: {wrong}", job, at=event.seq)
                break
            if event.version:
                state, version = event.state, event.version


def _wrong(event: Event, state: str | None, version: int) -> str | None:
    """Say what is wrong with an event that comes in this state, if anything."""
    if event.version == 0:
        return _wrong_note(event, state)
    if event.version != version + 1:
        return f"version {event.version} came after {version}"
    if event.kind not in STEPS:
        return f"there is no event {event.kind!r}"
    sources, targets = STEPS[event.kind]
    if state is None and event.kind != "created":
        return f"its journal begins with {event.kind!r}"
    if state is not None and state not in sources:
        return f"{event.kind!r} came to a job that was {state}"
    if event.state not in targets:
        return f"{event.kind!r} cannot make a job {event.state}"
    return None


def _wrong_note(event: Event, state: str | None) -> str | None:
    if event.kind != LATE:
        return f"{event.kind!r} is no note"
    if event.state != state:
        return f"a note says {event.state} of a job that was {state}"
    return None
