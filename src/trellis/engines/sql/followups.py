"""Jobs that something follows: they end together with what follows, in one transaction.

Statements that end jobs without looking (`commit_done`, `commit_end`, `success_outcome`) leave
watched jobs alone, so a job with something behind it always ends here: whoever marks it as watched
in a committed transaction is seen, and a mark that comes too late finds the job ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trellis.core.batches import Batch
from trellis.core.followups import hook_jobs, is_end
from trellis.core.lifecycle import Transition
from trellis.core.slots import may_run_on
from trellis.engines.sql import batches, dependencies, limits, locks
from trellis.engines.sql.rows import record_from
from trellis.engines.sql.slots import hand_over, lock_keys, update_slot
from trellis.engines.sql.transaction import Storage, Transaction
from trellis.engines.values import CommitResult, Committed, Conflict

COMMITTED: Final = Committed()


async def settle(
    tx: Transaction, storage: Storage, transitions: Sequence[Transition]
) -> list[CommitResult]:
    """End these jobs, watched ones too, each once, and store what follows; one answer each.

    Locks are taken in the order of all transactions: batches, keys, then rows by number.
    """
    held_batches = await batches.hold(tx, transitions)
    await lock_keys(tx, (each.definition.key_hash for each in transitions))
    await tx.read_clock()
    by_row = {each.definition.row: each for each in transitions}
    held = await storage.end_watched([by_row[row] for row in sorted(by_row)])
    ended = [by_row[row] for row in sorted(held)]
    for transition in ended:
        if transition.definition.key_hash is not None:
            await update_slot(tx, transition)
        if may_run_on(transition):
            await locks.linger(tx, transition)
            await limits.linger(tx, transition)
    await after_end(tx, storage, ended, held_batches)
    await hand_over(tx, (each.definition.key_hash for each in ended))
    return [
        COMMITTED if each.definition.row in held else await conflict(tx, each)
        for each in transitions
    ]


async def after_end(
    tx: Transaction,
    storage: Storage,
    ended: Sequence[Transition],
    held: Sequence[Batch] | None = None,
) -> None:
    """Store what follows jobs that this transaction has just ended, and those that end by it.

    `held`: the batches of these jobs, if they are locked already.
    """
    judged = 0
    while ended:
        await _create_hooks(tx, storage, ended)
        waiting = await batches.hold(tx, ended) if held is None else held
        await batches.finish_members(tx, storage, waiting, ended)
        held = None
        rows = [
            dependencies.Ended(each.definition.row, each.head.state, each.head.generation)
            for each in ended
        ]
        if judged >= dependencies.PAGE:
            await dependencies.postpone(tx, rows)
            return
        ended, links = await dependencies.follow(tx, storage, rows)
        judged += links


async def work_off(tx: Transaction, storage: Storage) -> int:
    """Judge links that earlier transactions left; return how many."""
    left = await dependencies.backlog(tx)
    if not left:
        return 0
    ended, links = await dependencies.follow(tx, storage, left)
    await dependencies.forget_done(tx, left)
    await after_end(tx, storage, ended)
    return links


async def _create_hooks(tx: Transaction, storage: Storage, ended: Sequence[Transition]) -> None:
    following = [new for transition in ended for new in hook_jobs(transition)]
    await batches.create_following(tx, storage, following)


async def conflict(tx: Transaction, transition: Transition) -> Conflict:
    """Return the job as it is now."""
    row = await tx.one("record_by_seq", tx.array([transition.definition.row]))
    return Conflict(record_from(row) if row else None)


def was_watched(transition: Transition, result: CommitResult) -> bool:
    """Return whether a decision was refused although it holds: then `settle` must store it."""
    if not isinstance(result, Conflict) or result.record is None or not is_end(transition):
        return False
    now, before = result.record.head, transition.before
    return (now.version, now.fence) == (before.version, before.fence)
