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
    """End these jobs, watched ones too, and store what follows; one answer each.

    Locks are taken in the order of all transactions: batches, keys, then rows by number.
    """
    held_batches = await batches.hold(tx, transitions)
    await lock_keys(tx, (each.definition.key_hash for each in transitions))
    await tx.read_clock()
    answers = await _end(tx, storage, transitions)
    stored = (each for at, each in enumerate(transitions) if answers.get(at) is COMMITTED)
    ended = sorted(stored, key=lambda each: each.definition.row)
    for transition in ended:
        if transition.definition.key_hash is not None:
            await update_slot(tx, transition)
        if may_run_on(transition):
            await locks.linger(tx, transition)
            await limits.linger(tx, transition)
    await after_end(tx, storage, ended, held_batches)
    await hand_over(tx, (each.definition.key_hash for each in ended))
    return [
        answers[at] if at in answers else await conflict(tx, each)
        for at, each in enumerate(transitions)
    ]


async def _end(
    tx: Transaction, storage: Storage, transitions: Sequence[Transition]
) -> dict[int, CommitResult]:
    """End jobs; return the answers by position, without those of decisions that come too late.

    Of several decisions about one job the first counts whose guard holds: a call may have the end
    of an old attempt before that of the current one.
    """
    answers: dict[int, CommitResult] = {}
    left = dict(enumerate(transitions))
    while left:
        first = {each.definition.row: at for at, each in reversed(left.items())}
        held = await storage.end_watched([left[first[row]] for row in sorted(first)])
        answers |= {first[row]: COMMITTED for row in held}
        tried = set(first.values())
        later = {at: each for at, each in left.items() if at not in tried}
        later = {at: each for at, each in later.items() if each.definition.row not in held}
        for row in {each.definition.row for each in later.values()}:
            answers[first[row]] = await conflict(tx, left[first[row]])
        left = later
    return answers


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
