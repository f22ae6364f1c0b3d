"""Jobs that completed, stored together: SQLite copies what has not changed from their queue rows.

Only decisions that leave generation, attempt, claims, crashes and `run_at` as they were go this
way; `commit` stores the others. Few values and few statements per call, because binding a value
and returning from a statement take the interpreter from the thread that runs the handlers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from trellis.core.commands import Complete
from trellis.core.durations import Instant
from trellis.core.events import Event
from trellis.core.job import kept_by_completing
from trellis.core.lifecycle import Transition
from trellis.core.policy import Policy
from trellis.core.timers import keep_until
from trellis.engines.sqlite.transaction import Transaction

_WITHOUT_RESULT: Final = (False, False, False, False, False, True)


class Successes(NamedTuple):
    """What is stored of jobs that completed at one moment: the columns of `success_outcome`."""

    event: Event
    jobs: list[int]
    with_result: list[Any]
    without_result: list[Any]


def gather(transitions: Sequence[Transition]) -> tuple[Successes | None, Sequence[int]]:
    """Return those that can be stored together, and the places of the others."""
    every = range(len(transitions))
    if len(transitions) < 2:  # noqa: PLR2004
        return None, every
    jobs: list[int] = []
    others: list[int] = []
    with_result: list[Any] = []
    without_result: list[Any] = []
    first: Event | None = None
    policy: Policy | None = None
    until: Instant | None = None
    for place, (definition, before, command, event, head) in enumerate(transitions):
        fence = before.fence
        if (
            type(command) is not Complete
            or fence is None
            or event.data is not None
            or definition.key_hash is not None
            or head.version != before.version + 1
            or kept_by_completing(head) != kept_by_completing(before)
            or (first is not None and (event.at != first.at or event.state is not first.state))
        ):
            others.append(place)
            continue
        first = first or event
        if definition.policy is not policy:
            policy, until = definition.policy, keep_until(definition, head)
        jobs.append(definition.row)
        row = (definition.row, before.version, fence.token, command.started_at, until)
        # Without the result where there is none: sqlite3 takes long to bind a NULL.
        if command.result is None:
            without_result += row
        else:
            with_result += (*row, command.result)
    if first is None or len(set(jobs)) < len(jobs):
        return None, every
    return Successes(first, jobs, with_result, without_result), others


def store(tx: Transaction, successes: Successes) -> bool:
    """Store them all; False if a guard did not hold, and then the caller undoes it."""
    event, jobs, with_result, without_result = successes
    head = (event.state._value_, event.at)
    stored = tx.run_joined("success_outcome", with_result, *head)
    stored += tx.run_joined("success_outcome", without_result, *head, nulls=_WITHOUT_RESULT)
    if stored != len(jobs):
        return False
    numbers = json.dumps(jobs)
    tx.run("success_event", event.kind._value_, *head, numbers)
    tx.run("success_end", numbers)
    return True
