"""`commit` on SQLite: store decisions, guarded by the version and fence they were made against.

Settlements of plain jobs go in together: if the guarded delete removes as many rows as there are
decisions, all guards held. If not, the part is undone and done again one by one, so that exactly
the stale ones are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from trellis.core.admission import Reject, revive_key
from trellis.core.commands import Complete
from trellis.core.durations import Instant
from trellis.core.lifecycle import Transition
from trellis.core.slots import may_run_on
from trellis.core.states import ENDED, LIVE, WAITING
from trellis.core.timers import keep_until, look_at
from trellis.engines.sql import locks
from trellis.engines.sql.rows import Row, encode_failure, record_from
from trellis.engines.sql.transaction import run_through
from trellis.engines.sqlite import fast_complete
from trellis.engines.sqlite.fast_complete import Successes
from trellis.engines.sqlite.journaling import Shaped, journal, journal_many, shape_many
from trellis.engines.sqlite.keying import (
    gather_facts,
    hand_over,
    park_of,
    update_slot,
)
from trellis.engines.sqlite.registry import Lane
from trellis.engines.sqlite.transaction import Transaction
from trellis.engines.values import CommitResult, Committed, Conflict, KeyRefused

_COMMITTED: Final = Committed()


@dataclass(slots=True)
class Batch:
    """Decisions to store; the rows of plain settlements are made before the writer's turn."""

    transitions: Sequence[Transition]
    #: What is stored by `fast_complete`, and the places of the others.
    completed: Successes | None
    others_at: Sequence[int]
    guards: list[Row] = field(default_factory=list)
    successes: list[Row] = field(default_factory=list)
    others: list[Row] = field(default_factory=list)
    events: Shaped = field(default_factory=dict)


def prepare(transitions: Sequence[Transition]) -> Batch:
    """Make the rows of a call, on the caller's thread."""
    batch = Batch(transitions, *fast_complete.gather(transitions))
    if batch.completed or len(transitions) < 2 or not all(map(_is_plain_end, transitions)):  # noqa: PLR2004
        return batch
    for transition in transitions:
        batch.guards.append(_guard(transition))
        if isinstance(transition.command, Complete):
            batch.successes.append(_success_row(transition))
        else:
            batch.others.append(_outcome_row(transition))
    batch.events = shape_many((each.definition.row, each.event) for each in transitions)
    return batch


def commit(tx: Transaction, batch: Batch) -> list[CommitResult]:
    """Store decisions, each on its own."""
    tx.topics.update(("ready", "settled"))
    results: list[CommitResult] = [_COMMITTED] * len(batch.transitions)
    places: Sequence[int] = range(len(results))
    if batch.completed or batch.guards:
        tx.savepoint()
        if _end_together(tx, batch):
            tx.release()
            places = batch.others_at if batch.completed else ()
        else:
            tx.undo()
    for place in places:
        results[place] = commit_one(tx, batch.transitions[place])
    return results


def _is_plain_end(transition: Transition) -> bool:
    return (
        transition.head.finished_at is not None
        and transition.definition.key_hash is None
        and transition.before.finished_at is None
        and not may_run_on(transition)
    )


def _end_together(tx: Transaction, batch: Batch) -> bool:
    if batch.completed:
        return fast_complete.store(tx, batch.completed)
    if tx.run_many("commit_end", batch.guards) != len(batch.guards):
        return False
    tx.run_many("commit_outcome", batch.successes)
    tx.run_sparse("commit_outcome_full", batch.others)
    journal_many(tx, batch.events)
    return True


def commit_one(tx: Transaction, transition: Transition) -> CommitResult:
    """Store one decision."""
    before, after = transition.before.state, transition.head.state
    if before in LIVE and after in ENDED:
        stored = _end(tx, transition)
    elif before in LIVE:
        stored = _move(tx, transition)
    elif after in ENDED:
        stored = _close(tx, transition)
    else:
        refused = _refuse_revival(tx, transition)
        if refused is not None:
            return refused
        stored = _revive(tx, transition)
    if not stored:
        row = tx.one("record_by_seq", transition.definition.row)
        return Conflict(record_from(row) if row else None)
    journal(tx, transition.definition.row, transition.event)
    if may_run_on(transition):
        run_through(locks.linger(tx.shared, transition))
    if transition.definition.key_hash is not None:
        hand_over(tx, transition.definition.key_hash)
    return _COMMITTED


def _end(tx: Transaction, transition: Transition) -> bool:
    if not tx.run("commit_end", *_guard(transition)):
        return False
    tx.run("commit_outcome_full", *_outcome_row(transition))
    if transition.definition.key_hash is not None:
        update_slot(tx, transition)
    return True


def _move(tx: Transaction, transition: Transition) -> bool:
    definition, head = transition.definition, transition.head
    # The guard first, on its own: nothing else may happen to the slot if it does not hold.
    row = _move_row(transition, _seen_at(tx, transition))
    moved = tx.run("commit_move", *row, *_guard(transition))
    if not moved:
        return False
    if definition.key_hash is not None:
        update_slot(tx, transition)
    if head.state in WAITING:
        tx.run("key_availability", park_of(tx, definition, head), definition.row)
    return True


def _seen_at(tx: Transaction, transition: Transition) -> Instant | None:
    """Return the last sign of life of an attempt that goes on."""
    if transition.head.fence is None:
        return None
    row = tx.one("commit_seen_at", transition.definition.row)
    return row[0] if row else None


def _close(tx: Transaction, transition: Transition) -> bool:
    head, before = transition.head, transition.before
    until = keep_until(transition.definition, head)
    return bool(
        tx.run(
            "commit_close",
            head.state,
            head.version,
            head.finished_at,
            until,
            transition.definition.row,
            before.generation,
            before.version,
        )
    )


def _refuse_revival(tx: Transaction, transition: Transition) -> CommitResult | None:
    definition = transition.definition
    key = definition.policy.key
    if key is None or definition.key_hash is None:
        return None
    row = tx.one("record_by_seq", definition.row)
    if row is None or record_from(row).head.version != transition.before.version:
        return Conflict(record_from(row) if row else None)
    decision = revive_key(key, gather_facts(tx, definition.key_hash))
    return KeyRefused(*decision) if isinstance(decision, Reject) else None


def _revive(tx: Transaction, transition: Transition) -> bool:
    definition, head, before = transition.definition, transition.head, transition.before
    if not tx.run("commit_revive_guard", definition.row, before.generation, before.version):
        return False
    lane = Lane(definition.service, definition.queue, definition.type, definition.priority)
    tx.run(
        "create_queue_full",
        definition.row,
        tx.books.lane_number(tx, lane),
        park_of(tx, definition, head),
        head.state,
        head.version,
        head.generation,
        head.claims,
        head.run_at,
        definition.key_hash,
        None,
        look_at(definition, head),
    )
    return True


def _guard(transition: Transition) -> Row:
    before = transition.before
    token = None if before.fence is None else before.fence.token
    return (transition.definition.row, before.version, token)


def _move_row(transition: Transition, seen_at: Instant | None) -> Row:
    head = transition.head
    fence = head.fence or (None, None)
    return (
        "taken",  # a waiting job is parked right after, when its slot is settled
        head.state,
        head.version,
        head.generation,
        head.attempt,
        head.claims,
        head.crashes,
        head.run_at,
        *fence,
        head.claimed_at,
        head.asked_at,
        head.blocked,
        head.suspect,
        encode_failure(head.error),
        look_at(transition.definition, head, seen_at),
    )


def _success_row(transition: Transition) -> Row:
    head, command = transition.head, transition.command
    started_at: Instant | None = getattr(command, "started_at", None)
    return (
        transition.definition.row,
        head.generation,
        head.state._value_,
        head.version,
        head.attempt,
        head.claims,
        head.crashes,
        head.run_at,
        started_at,
        head.finished_at,
        command.result if isinstance(command, Complete) else None,
        keep_until(transition.definition, head),
    )


def _outcome_row(transition: Transition) -> Row:
    *most, result, until = _success_row(transition)
    return (*most, encode_failure(transition.head.error), result, until)
