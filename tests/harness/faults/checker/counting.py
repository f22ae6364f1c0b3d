"""C8: attempts and crashes are counted as the design says, and bound every job.

A start takes one of the budget. Only a hand-back (no error) and a suspect (one of several in a
process that died) get it back; a failure, a lost lease and a crash do not. A crash counts one more
crash. Nobody starts beyond the budget, and nobody is given up before it is spent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.harness.faults.checker.histories import Event, Histories, Row, transitions
from tests.harness.faults.checker.violations import Violation, about

_RULE = "C8 attempts"


@dataclass(slots=True)
class _Count:
    attempt: int = 0
    crashes: int = 0


def check_counting(histories: Histories) -> Iterator[Violation]:
    """Count along every journal."""
    for job, row in histories.rows.items():
        count = _Count()
        starts = 0
        for event in transitions(histories.journals.get(job, [])):
            starts += event.kind == "started"
            wrong = _step(count, event, row)
            if wrong:
                yield about(histories, _RULE, f"{job}: {wrong}", job, at=event.seq)
                break
        else:
            if row.head.get("claims") != starts:
                text = f"{job} started {starts} times; the row says {row.head.get('claims')}"
                yield about(histories, _RULE, text, job)


def _step(count: _Count, event: Event, row: Row) -> str | None:
    """Count one event; say what is wrong with it, if anything."""
    if event.kind == "started":
        count.attempt += 1
        if count.attempt > row.max_attempts:
            return f"started attempt {count.attempt} of {row.max_attempts}"
    elif event.kind == "retried":
        count.attempt = count.crashes = 0
    if event.attempt != count.attempt and event.fence is not None:
        return f"{event.kind!r} speaks of attempt {event.attempt}; it was {count.attempt}"
    return _crash(count, event, row) or _given_back(count, event) or _given_up(count, event, row)


def _crash(count: _Count, event: Event, row: Row) -> str | None:
    told = event.data.get("crashes")
    is_blamed = event.error_code in ("crash", "crash_loop") and not event.data.get("suspect")
    if is_blamed:
        count.crashes += 1
    if told is not None and not is_blamed:
        return f"a crash was counted for {event.error_code}"
    if is_blamed and told != count.crashes:
        return f"crash {count.crashes} was counted as {told}"
    if count.crashes > row.max_crashes:
        return f"crash {count.crashes} of {row.max_crashes}"
    return None


def _given_back(count: _Count, event: Event) -> str | None:
    """See that exactly the attempts that cost nothing are given back."""
    if event.kind != "retry":
        return None
    told = event.data.get("attempt")
    is_free = event.error_code is None or bool(event.data.get("suspect"))
    if is_free and told != count.attempt - 1:
        return f"attempt {count.attempt} was to be given back, but now it is {told}"
    if not is_free and told is not None:
        return f"attempt {count.attempt} ended by {event.error_code} and was given back"
    count.attempt -= is_free
    return None


def _given_up(count: _Count, event: Event, row: Row) -> str | None:
    if event.kind != "dead":
        return None
    if event.error_code == "crash_loop":
        enough = count.crashes >= row.max_crashes
        return None if enough else f"given up after {count.crashes} crashes of {row.max_crashes}"
    enough = count.attempt >= row.max_attempts
    return None if enough else f"dead after attempt {count.attempt} of {row.max_attempts}"
