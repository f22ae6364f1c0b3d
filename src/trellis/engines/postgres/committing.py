"""`commit` on PostgreSQL: store decisions, guarded by the version and fence they were made against.

Decisions about jobs without a key go in together, in one statement per kind: successes, other ends
and moves. Each statement says which guards held; the others are conflicts.
The rest is done one by one in one transaction, under the keys' locks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from trellis.core.admission import Reject, revive_key
from trellis.core.commands import Complete
from trellis.core.durations import Instant
from trellis.core.lifecycle import Transition
from trellis.core.slots import may_run_on
from trellis.core.states import ENDED, LIVE, WAITING
from trellis.core.timers import keep_until, look_at
from trellis.engines.postgres.keying import gather_facts, hand_over, park_of, update_slot
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql import locks
from trellis.engines.sql.rows import encode_data, encode_failure, record_from
from trellis.engines.values import CommitResult, Committed, Conflict, KeyRefused

COMMITTED: Final = Committed()
Columns = Iterable[list[Any]]


def kind_of(transition: Transition) -> str:
    """Say how a decision can be stored together with others; "" if it cannot.

    It is the name of the statement; successes of jobs with keys free their slots as well.
    """
    definition, before, command, event, head = transition
    if before.finished_at is not None:
        return ""
    if type(command) is Complete and event.data is None:
        return "commit_done" if definition.key_hash is None else "keyed_done"
    if definition.key_hash is not None:
        return ""
    if may_run_on(transition):
        return ""
    return "commit_move" if head.finished_at is None else "commit_end"


def end_columns(batch: Sequence[Transition]) -> Columns:
    """Return what `commit_end` wants."""
    heads = [each.head for each in batch]
    return (
        *_guards(batch),
        [getattr(each.command, "started_at", None) for each in batch],
        [getattr(each.command, "result", None) for each in batch],
        [encode_failure(head.error) for head in heads],
        [keep_until(each.definition, each.head) for each in batch],
        [head.state.value for head in heads],
        [head.version for head in heads],
        [head.attempt for head in heads],
        [head.claims for head in heads],
        [head.generation for head in heads],
        [head.crashes for head in heads],
        [head.run_at for head in heads],
        [head.finished_at for head in heads],
        *_events(batch),
    )


def move_columns(batch: Sequence[Transition], seen: dict[int, Instant]) -> Columns:
    """Return what `commit_move` wants; `seen` has the last signs of life of those that go on."""
    heads = [each.head for each in batch]
    fences = [head.fence or (None, None) for head in heads]
    return (
        *_guards(batch),
        [head.state.value for head in heads],
        [head.version for head in heads],
        [head.generation for head in heads],
        [head.attempt for head in heads],
        [head.claims for head in heads],
        [head.crashes for head in heads],
        [head.run_at for head in heads],
        [fence[0] for fence in fences],
        [fence[1] for fence in fences],
        [head.claimed_at for head in heads],
        [head.asked_at for head in heads],
        [head.blocked for head in heads],
        [head.suspect for head in heads],
        [encode_failure(head.error) for head in heads],
        [_look_at(each, seen) for each in batch],
        [each.event.at for each in batch],
        *_events(batch),
        [each.definition.key_hash is not None for each in batch],
    )


def _look_at(transition: Transition, seen: dict[int, Instant]) -> Instant | None:
    definition, head = transition.definition, transition.head
    return look_at(definition, head, seen.get(definition.row) if head.fence else None)


def _guards(batch: Sequence[Transition]) -> Columns:
    return (
        [each.definition.row for each in batch],
        [each.before.version for each in batch],
        [each.before.fence.token if each.before.fence else 0 for each in batch],
    )


def _events(batch: Sequence[Transition]) -> Columns:
    events = [each.event for each in batch]
    fences = [event.fence or (None, None) for event in events]
    return (
        [event.kind.value for event in events],
        [encode_data(event.data) for event in events],
        [event.attempt for event in events],
        [fence[0] for fence in fences],
        [fence[1] for fence in fences],
    )


async def commit_one(
    tx: Transaction, transition: Transition, *, guest: bool = False
) -> CommitResult:
    """Store one decision; the caller has the lock of its key, if it has one, unless it is a guest.

    A guest hands nothing over: that is done when its own job is let in.
    """
    before, after = transition.before.state, transition.head.state
    if before in LIVE and after in ENDED:
        stored = await _end(tx, transition)
    elif before in LIVE:
        stored = await _move(tx, transition)
    elif after in ENDED:
        stored = await _close(tx, transition)
    else:
        refused = await _refuse_revival(tx, transition)
        if refused is not None:
            return refused
        stored = await _revive(tx, transition)
    if not stored:
        row = await tx.one("record_by_seq", [transition.definition.row])
        return Conflict(record_from(row) if row else None)
    if may_run_on(transition):
        await locks.linger(tx, transition)
    if transition.definition.key_hash is not None and not guest:
        await hand_over(tx, [transition.definition.key_hash])
    return COMMITTED


async def _end(tx: Transaction, transition: Transition) -> bool:
    if await tx.value("commit_end", *end_columns([transition])) is not None:
        return False
    if transition.definition.key_hash is not None:
        await update_slot(tx, transition)
    return True


async def _move(tx: Transaction, transition: Transition) -> bool:
    definition, head = transition.definition, transition.head
    seen = await seen_at(tx, [transition])
    if await tx.value("commit_move", *move_columns([transition], seen)) is not None:
        return False
    if definition.key_hash is not None:
        await update_slot(tx, transition)
        if head.state in WAITING:
            await tx.rows("key_availability", await park_of(tx, definition, head), definition.row)
    return True


async def seen_at(tx: Transaction, batch: Sequence[Transition]) -> dict[int, Instant]:
    """Return the last signs of life of attempts that go on."""
    running = [each.definition.row for each in batch if each.head.fence is not None]
    if not running:
        return {}
    return {row[0]: row[1] for row in await tx.rows("commit_seen_at", running)}


async def _close(tx: Transaction, transition: Transition) -> bool:
    head, before = transition.head, transition.before
    await _lock_outcome(tx, transition)
    closed = await tx.value(
        "commit_close",
        head.state.value,
        head.version,
        head.finished_at,
        keep_until(transition.definition, head),
        transition.definition.row,
        before.generation,
        before.version,
    )
    return closed is not None and await _journal(tx, transition)


async def _refuse_revival(tx: Transaction, transition: Transition) -> CommitResult | None:
    definition = transition.definition
    key = definition.policy.key
    if key is None or definition.key_hash is None:
        return None
    row = await tx.one("record_by_seq", [definition.row])
    if row is None or record_from(row).head.version != transition.before.version:
        return Conflict(record_from(row) if row else None)
    decision = revive_key(key, await gather_facts(tx, definition.key_hash, key.active))
    return KeyRefused(*decision) if isinstance(decision, Reject) else None


async def _revive(tx: Transaction, transition: Transition) -> bool:
    definition, head, before = transition.definition, transition.head, transition.before
    guard = (definition.row, before.generation, before.version)
    await _lock_outcome(tx, transition)
    if await tx.value("commit_revive_guard", *guard) is None:
        return False
    await tx.rows(
        "commit_revive",
        definition.row,
        head.run_at,
        await park_of(tx, definition, head),
        head.state.value,
        head.version,
        head.claims,
        head.generation,
        look_at(definition, head),
    )
    return await _journal(tx, transition)


async def _lock_outcome(tx: Transaction, transition: Transition) -> None:
    """Wait for whoever brings the job back or closes it; the guard must see what they did.

    A statement sees others' changes from before it began, not those it has waited for.
    """
    await tx.rows("outcome_lock", [transition.definition.row])


async def _journal(tx: Transaction, transition: Transition) -> bool:
    kind, version, state, at, attempt, fence, data = transition.event
    session, token = fence or (None, None)
    await tx.rows(
        "event",
        transition.definition.row,
        at,
        session,
        token,
        version,
        attempt,
        state.value,
        kind.value,
        encode_data(data),
    )
    return True
