"""`commit` on SQLite: what can be stored together, then the rest one by one (`engines.sql.commit`).

Most decisions are successes that leave generation, attempt, claims, crashes and `run_at` as they
were: SQLite copies these from the jobs' queue rows. Few values and few statements per call, because
binding a value and returning from a statement take the interpreter from the thread that runs the
handlers. Without any such success, ends of jobs without keys are stored together. If a guard does
not hold, the part is undone and its decisions are stored one by one, so that exactly the stale ones
are refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from trellis.core.audit import ACTIONS
from trellis.core.commands import Complete
from trellis.core.durations import Instant
from trellis.core.events import Event
from trellis.core.followups import is_followed, is_member
from trellis.core.job import kept_by_completing
from trellis.core.lifecycle import Transition
from trellis.core.policy import Policy
from trellis.core.slots import may_run_on
from trellis.core.timers import keep_until
from trellis.engines.hints import is_asked
from trellis.engines.sql import audit, commit, followups
from trellis.engines.sql.rows import Row
from trellis.engines.sql.transaction import run_through
from trellis.engines.sqlite.storage import (
    SqliteStorage,
    guard,
    outcome_row,
    policies_in_force,
    success_row,
)
from trellis.engines.sqlite.transaction import Shaped, Transaction, journal_many, shape_many
from trellis.engines.values import CommitResult, Committed

_WITHOUT_RESULT: Final = (False, False, False, False, False, True)


class Successes(NamedTuple):
    """What is stored of jobs that completed at one moment: the columns of `success_outcome`."""

    event: Event
    jobs: list[int]
    with_result: list[Any]
    without_result: list[Any]


@dataclass(slots=True)
class Batch:
    """Decisions to store; the rows of plain settlements are made before the writer's turn."""

    transitions: Sequence[Transition]
    #: Successes to store together, and the positions of the other decisions.
    completed: Successes | None
    others_at: Sequence[int]
    #: Of those, the positions of commands of operators, which the audit records.
    operated_at: Sequence[int]
    guards: list[Row] = field(default_factory=list)
    successes: list[Row] = field(default_factory=list)
    others: list[Row] = field(default_factory=list)
    events: Shaped = field(default_factory=dict)


def prepare(transitions: Sequence[Transition]) -> Batch:
    """Make the rows of a call, on the caller's thread."""
    completed, others_at = _gather(transitions)
    operated_at = [each for each in others_at if type(transitions[each].command) in ACTIONS]
    batch = Batch(transitions, completed, others_at, operated_at)
    if batch.completed or len(transitions) < 2 or not all(map(_is_plain_end, transitions)):  # noqa: PLR2004
        return batch
    for transition in transitions:
        batch.guards.append((*guard(transition), False))
        if isinstance(transition.command, Complete):
            batch.successes.append(success_row(transition))
        else:
            batch.others.append(outcome_row(transition))
    batch.events = shape_many((each.definition.row, each.event) for each in transitions)
    return batch


def commit_batch(tx: Transaction, batch: Batch) -> list[CommitResult]:
    """Store decisions; each is accepted or refused independently of the others."""
    tx.topics.update(("ready", "settled"))
    if any(is_asked(batch.transitions[each]) for each in batch.operated_at):
        tx.topics.add("asked")
    results: list[CommitResult] = [followups.COMMITTED] * len(batch.transitions)
    positions: Sequence[int] = range(len(results))
    if batch.completed or batch.guards:
        tx.savepoint()
        if _end_together(tx, batch):
            tx.release()
            positions = batch.others_at if batch.completed else ()
        else:
            tx.undo()
    _store_others(tx, batch.transitions, positions, results)
    if batch.operated_at:
        stored = [
            batch.transitions[position]
            for position in batch.operated_at
            if isinstance(results[position], Committed)
        ]
        run_through(audit.record_decisions(tx.shared, stored))
    return results


def _store_others(
    tx: Transaction,
    transitions: Sequence[Transition],
    positions: Sequence[int],
    results: list[CommitResult],
) -> None:
    """Store decisions one by one, and together those about jobs that something follows."""
    shared, storage = tx.shared, SqliteStorage(tx)
    for part in commit.rounds((position, transitions[position]) for position in positions):
        followed: list[int] = []
        for position, transition in part:
            if not is_followed(transition):
                result = run_through(commit.commit_one(shared, storage, transition))
                if not followups.was_watched(transition, result):
                    results[position] = result
                    continue
            followed.append(position)
        if followed:
            wanted = [transitions[position] for position in followed]
            answers = run_through(followups.settle(shared, storage, wanted))
            for position, answer in zip(followed, answers, strict=True):
                results[position] = answer


def _is_plain_end(transition: Transition) -> bool:
    return (
        transition.head.finished_at is not None
        and transition.definition.key_hash is None
        and transition.before.finished_at is None
        and not may_run_on(transition)
        and not is_followed(transition)
    )


def _end_together(tx: Transaction, batch: Batch) -> bool:
    """Store what goes together; False if a guard did not hold."""
    if batch.completed:
        return _store(tx, batch.completed)
    policies = policies_in_force(tx, batch.transitions)
    if tx.run_many("commit_end", batch.guards) != len(batch.guards):
        return False
    tx.run_many("commit_outcome", [(*row, policies[row[0]]) for row in batch.successes])
    tx.run_sparse("commit_outcome_full", [(*row, policies[row[0]]) for row in batch.others])
    journal_many(tx, batch.events)
    return True


def _gather(transitions: Sequence[Transition]) -> tuple[Successes | None, Sequence[int]]:
    """Return those that can be stored together, and the positions of the others."""
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
    for position, (definition, before, command, event, head) in enumerate(transitions):
        fence = before.fence
        if (
            type(command) is not Complete
            or fence is None
            or event.data is not None
            or definition.key_hash is not None
            or definition.policy.hooks
            or (definition.relations is not None and is_member(definition))
            or (definition.dedupe is not None and definition.dedupe.period is not None)
            or head.version != before.version + 1
            or kept_by_completing(head) != kept_by_completing(before)
            or (first is not None and (event.at != first.at or event.state is not first.state))
        ):
            others.append(position)
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
    rows = jobs + [transitions[position].definition.row for position in others]
    if first is None or len(set(rows)) < len(rows):
        return None, every
    return Successes(first, jobs, with_result, without_result), others


def _store(tx: Transaction, successes: Successes) -> bool:
    """Store them all; False if a guard did not hold: then the caller undoes what was written."""
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
