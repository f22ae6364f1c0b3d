"""`commit`, one decision at a time, guarded by the version and the fence it was made against.

What is decided most often is stored in batches instead, by each engine's `commit.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from trellis.core.admission import Reject, revive_key
from trellis.core.commands import Adjust
from trellis.core.followups import is_followed
from trellis.core.lifecycle import Transition
from trellis.core.slots import may_run_on
from trellis.core.states import ENDED, LIVE, WAITING
from trellis.core.timers import keep_until, look_at
from trellis.engines.sql import followups, limits, locks
from trellis.engines.sql.followups import COMMITTED, conflict
from trellis.engines.sql.rows import event_row
from trellis.engines.sql.slots import availability, gather_facts, hand_over, update_slot
from trellis.engines.sql.transaction import Storage, Transaction
from trellis.engines.values import CommitResult, KeyRefused


def rounds(transitions: Iterable[tuple[int, Transition]]) -> list[list[tuple[int, Transition]]]:
    """Divide decisions, each with its position, so that a part has at most one about a job.

    A call may have several about one job, such as the end of an old attempt and that of the current
    one. They are stored one after the other, as if each had a call of its own.
    """
    parts: list[list[tuple[int, Transition]]] = []
    earlier: Counter[int] = Counter()
    for position, transition in transitions:
        row = transition.definition.row
        if earlier[row] == len(parts):
            parts.append([])
        parts[earlier[row]].append((position, transition))
        earlier[row] += 1
    return parts


async def commit_one(tx: Transaction, storage: Storage, transition: Transition) -> CommitResult:
    """Store one decision; unless the transaction is a caller's, it holds the lock of the key.

    A watched job is not ended: the answer is then a conflict with the job unchanged, and
    `followups.settle` must store the decision.
    """
    if is_followed(transition):
        return (await followups.settle(tx, storage, [transition]))[0]
    before, after = transition.before.state, transition.head.state
    if before in LIVE and after in ENDED:
        stored = await _end(tx, storage, transition)
    elif before in LIVE:
        stored = await _move(tx, storage, transition)
    elif after in ENDED:
        stored = await _close(tx, transition)
    else:
        refused = await _refuse_revival(tx, transition)
        if refused is not None:
            return refused
        stored = await _revive(tx, transition)
    if not stored:
        return await conflict(tx, transition)
    if isinstance(transition.command, Adjust):
        await _redefine(tx, storage, transition)
    if may_run_on(transition):
        await locks.linger(tx, transition)
        await limits.linger(tx, transition)
    if transition.definition.key_hash is not None:
        await hand_over(tx, [transition.definition.key_hash])
    return COMMITTED


async def _redefine(tx: Transaction, storage: Storage, transition: Transition) -> None:
    """Store what an operator has changed; a job that waits for others waits on."""
    await storage.redefine(transition.definition)
    if not transition.head.claims:
        await tx.run("commit_repark", transition.definition.row)


async def _end(tx: Transaction, storage: Storage, transition: Transition) -> bool:
    if not await storage.end(transition):
        return False
    if transition.definition.key_hash is not None:
        await update_slot(tx, transition)
    return True


async def _move(tx: Transaction, storage: Storage, transition: Transition) -> bool:
    definition, head = transition.definition, transition.head
    # The guard comes first: nothing may happen to the slot if it does not hold.
    if not await storage.move(transition):
        return False
    if definition.key_hash is not None:
        await update_slot(tx, transition)
        if head.state in WAITING:
            now_is = await availability(tx, definition, head)
            await tx.run("key_availability", now_is, definition.row)
    return True


async def _close(tx: Transaction, transition: Transition) -> bool:
    """Give an ended job another end."""
    definition, head, before = transition.definition, transition.head, transition.before
    await _lock_outcome(tx, transition)
    closed = await tx.changed(
        "commit_close",
        head.state.value,
        head.version,
        head.finished_at,
        keep_until(definition, head),
        definition.row,
        before.generation,
        before.version,
    )
    return bool(closed) and await _journal(tx, transition)


async def _refuse_revival(tx: Transaction, transition: Transition) -> CommitResult | None:
    """Return why an ended job may not run again under its key; None if it may."""
    definition = transition.definition
    key = definition.policy.key
    if key is None or definition.key_hash is None:
        return None
    stored = await conflict(tx, transition)
    if stored.record is None or stored.record.head.version != transition.before.version:
        return stored
    decision = revive_key(key, await gather_facts(tx, definition.key_hash, key.active))
    return KeyRefused(*decision) if isinstance(decision, Reject) else None


async def _revive(tx: Transaction, transition: Transition) -> bool:
    definition, head, before = transition.definition, transition.head, transition.before
    await _lock_outcome(tx, transition)
    guard = (definition.row, before.generation, before.version)
    if not await tx.changed("commit_revive_guard", *guard):
        return False
    await tx.run(
        "commit_revive",
        definition.row,
        head.run_at,
        await availability(tx, definition, head),
        head.state.value,
        head.version,
        head.claims,
        head.generation,
        look_at(definition, head),
    )
    return await _journal(tx, transition)


async def _lock_outcome(tx: Transaction, transition: Transition) -> None:
    """Wait for transactions that revive or close the job: the guard must see what they did.

    A statement sees changes from before it began, but not those it has waited for.
    """
    await tx.lock("outcome_lock", [transition.definition.row])


async def _journal(tx: Transaction, transition: Transition) -> bool:
    await tx.run("event_full", *event_row(transition.definition.row, transition.event))
    return True
