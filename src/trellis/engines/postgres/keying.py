"""Key slots in PostgreSQL: rows owned by a job, then by its attempt; never counters.

Whoever moves slots of a key has the key's lock (`key_lock`, until the transaction ends), taken
before any row: so freeing a slot and handing it to the next waiting job is one step, and two who
do so never wait for each other in a circle. Creators in a caller's transaction never take it;
their jobs park as `guest` and are let in after the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from trellis.core.admission import KeyFacts
from trellis.core.job import Definition, Head
from trellis.core.lifecycle import Transition
from trellis.core.slots import keeps_slot, slot_effect
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql.rows import PARK, Row, record_from

Park = Literal["ready", "later", "slot", "taken"]


async def lock_keys(tx: Transaction, key_hashes: Iterable[str | None]) -> None:
    """Be the only one who moves these keys' slots until the transaction ends."""
    names = sorted({each for each in key_hashes if each is not None})
    if names:
        await tx.rows("key_lock", names)


async def gather_facts(tx: Transaction, key_hash: str, active: int) -> KeyFacts:
    """Gather what admission needs to know about a key.

    Guests for whom there is a slot count as holders: they have it as soon as they are let in.
    """
    ((held, waiting, holder, newest, oldest, guests),) = await tx.rows("key_facts", key_hash)
    let_in = min(guests, max(0, active - held))
    return KeyFacts(held + let_in, waiting - let_in, holder, newest, oldest)


async def park_of(tx: Transaction, definition: Definition, head: Head) -> Park:
    """Say where a waiting job belongs now."""
    if head.run_at > tx.now:
        return "later"
    if definition.key_hash is not None and await slot_of(tx, definition.row) is None:
        return "slot"
    return "ready"


async def slot_of(tx: Transaction, job: int) -> int | None:
    """Return the slot a job holds for its next or present attempt."""
    found: int | None = await tx.value("slot_of_job", job)
    return found


async def hand_over(tx: Transaction, key_hashes: Iterable[str | None]) -> None:
    """Give free slots of these keys to their waiting jobs, in creation order."""
    names = sorted({each for each in key_hashes if each is not None})
    if names and await tx.value("key_hand_over", names):
        tx.topics.add("ready")


async def update_slot(tx: Transaction, transition: Transition) -> None:
    """Do to the job's slot what the transition means for it."""
    slot = await slot_of(tx, transition.definition.row)
    if slot is None:
        return
    effect = slot_effect(transition)
    fence = transition.before.fence
    lease = None
    if effect == "linger" and fence is not None:
        lease = await tx.one("session_lease", fence.session)
    if lease is not None:
        await tx.rows("slot_linger", tx.now + lease[0], slot)
    elif effect == "keep" or keeps_slot(transition.definition, transition.head):
        if transition.head.fence is None:
            await tx.rows("slot_unclaim", slot)
    else:
        await tx.rows("slot_free", slot)


async def end_lingering(tx: Transaction, name: str, *values: object) -> int:
    """End the lingering of the slots that a query names; hand each key over."""
    keys = {key_hash for _, key_hash, _ in await tx.rows(name, *values)}
    if not keys:
        return 0
    await lock_keys(tx, keys)
    # Looked at again: who had a key's lock before us may have ended them.
    slots = [row for row in await tx.rows(name, *values) if row[1] in keys]
    for row in slots:
        await _end(tx, row)
    await hand_over(tx, keys)
    return len(slots)


async def _end(tx: Transaction, row: Row) -> None:
    """Free a slot that lingered, unless its job keeps it for the next attempt and has no other."""
    slot, _, job = row
    found = await tx.one("record_by_seq", [job])
    is_kept = found is not None and keeps_slot(*record_from(found))
    if found is None or not is_kept or await slot_of(tx, job) is not None:
        await tx.rows("slot_free", slot)
        return
    await tx.rows("slot_unclaim", slot)
    if found[PARK] == "slot":
        await tx.rows("key_available", job)
        tx.topics.add("ready")


async def admit_guests(tx: Transaction, limit: int) -> None:
    """Let keyed jobs that callers created in their own transactions wait like everybody else."""
    waiting: Sequence[Row] = await tx.rows("caller_waiting", limit)
    if not waiting:
        return
    await lock_keys(tx, (key_hash for _, key_hash in waiting))
    admitted = await tx.rows("caller_admit", [job for job, _ in waiting])
    await hand_over(tx, (key_hash for (key_hash,) in admitted))
