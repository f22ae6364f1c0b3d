"""Key slots: rows owned by a job, then by its attempt; never counters.

A transaction that moves slots of a key holds the key's lock (`lock_keys`), taken before the lock of
any row. So freeing a slot and handing it to the next waiting job is one step, and two transactions
never wait for each other in a circle. A caller's transaction does not take that lock: keyed jobs
created in it become available as `unadmitted` and wait for a slot after its commit
(`admit_callers_jobs`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from trellis.core.admission import KeyFacts
from trellis.core.job import Definition, Head
from trellis.core.lifecycle import Transition
from trellis.core.slots import keeps_slot, slot_effect
from trellis.engines.sql import key_rates
from trellis.engines.sql.rows import AVAILABILITY, record_from
from trellis.engines.sql.transaction import Transaction

#: Of a waiting job: it may be claimed, waits for its time, or waits for a slot of its key.
Availability: TypeAlias = Literal["ready", "scheduled", "waiting_for_slot"]


async def lock_keys(tx: Transaction, key_hashes: Iterable[str | None]) -> None:
    """Keep other transactions from moving slots of these keys until this one ends."""
    names = _names(key_hashes)
    if names and not tx.is_callers:
        await tx.lock("key_lock", names)


async def hand_over(tx: Transaction, key_hashes: Iterable[str | None]) -> None:
    """Give free slots of these keys to their waiting jobs, in the order of claims."""
    names = _names(key_hashes)
    if names and not tx.is_callers and await tx.hand_over(names):
        tx.topics.add("ready")


def _names(key_hashes: Iterable[str | None]) -> list[str]:
    return sorted({each for each in key_hashes if each is not None})


async def gather_facts(tx: Transaction, key_hash: str, active: int) -> KeyFacts:
    """Gather what admission needs to know about a key.

    Jobs of callers' transactions for which there is a slot count as holders: they get it as soon
    as they are admitted.
    """
    row = await tx.one("key_facts", key_hash)
    held, waiting, holder, newest, oldest, callers = row or (0, 0, None, None, None, 0)
    admitted = min(callers, max(0, active - held))
    return KeyFacts(held + admitted, waiting - admitted, holder, newest, oldest)


async def availability(tx: Transaction, definition: Definition, head: Head) -> Availability:
    """Return whether a waiting job may be claimed now, or what it waits for."""
    if head.run_at > tx.now:
        return "scheduled"
    if definition.key_hash is not None and await slot_of(tx, definition.row) is None:
        return "waiting_for_slot"
    return "ready"


async def slot_of(tx: Transaction, job: int) -> int | None:
    """Return the slot a job holds for its next or present attempt."""
    found: int | None = await tx.value("slot_of_job", job)
    return found


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
        await tx.run("slot_linger", *tx.lease_until(lease[0]), slot)
    elif effect == "keep" or keeps_slot(transition.definition, transition.head):
        if transition.head.fence is None:
            await tx.run("slot_unclaim", slot)
    else:
        await tx.run("slot_free", slot)


async def end_lingering(tx: Transaction, name: str, *values: object) -> int:
    """End the lingering of the slots that a query names; hand each key over."""
    keys = {key_hash for _, key_hash, _ in await tx.rows(name, *values)}
    if not keys:
        return 0
    await lock_keys(tx, keys)
    # Read again: a transaction that held a key's lock before this one may have ended them.
    slots = [row for row in await tx.rows(name, *values) if row[1] in keys]
    for slot, _, job in slots:
        await _end(tx, slot, job)
    await hand_over(tx, keys)
    return len(slots)


async def _end(tx: Transaction, slot: int, job: int) -> None:
    """Free a slot that lingered, unless its job keeps it for the next attempt and has no other."""
    row = await tx.one("record_by_seq", tx.array([job]))
    if row is None or not keeps_slot(*record_from(row)) or await slot_of(tx, job) is not None:
        await tx.run("slot_free", slot)
        return
    await tx.run("slot_unclaim", slot)
    if row[AVAILABILITY] == "waiting_for_slot":
        await tx.run("key_available", job)
        tx.topics.add("ready")


async def wake_rated(tx: Transaction, limit: int) -> int:
    """Hand over the keys that wait for a token which has come; return how many jobs may start."""
    await tx.read_clock()
    due = await tx.rows("key_wake_due", tx.now, limit)
    keys = _names(key_hash for (key_hash,) in due)
    if not keys:
        return 0
    await lock_keys(tx, keys)
    await tx.run("key_wake_done", tx.now, tx.array(keys))
    await key_rates.renew(tx, keys)
    handed = await tx.hand_over(keys)
    if handed:
        tx.topics.add("ready")
    return handed


async def withdraw(tx: Transaction, key_hashes: Iterable[str]) -> None:
    """Take back the slots with which no job has started, and hand over as many as have tokens."""
    await tx.read_clock()
    keys = _names(key_hashes)
    await lock_keys(tx, keys)
    for slot, job in await tx.rows("slot_unclaimed", tx.array(keys)):
        row = await tx.one("record_by_seq", tx.array([job]))
        if row is None or not keeps_slot(*record_from(row)):
            await tx.run("slot_free", slot)
        await tx.run("key_availability", "waiting_for_slot", job)
    await hand_over(tx, keys)


async def admit_callers_jobs(tx: Transaction, limit: int) -> None:
    """Let keyed jobs that were created in callers' transactions wait for their slots."""
    waiting = await tx.rows("caller_waiting", limit)
    if not waiting:
        return
    await lock_keys(tx, (key_hash for _, key_hash in waiting))
    admitted = await tx.rows("caller_admit", tx.array([job for job, _ in waiting]))
    await hand_over(tx, (key_hash for (key_hash,) in admitted))
