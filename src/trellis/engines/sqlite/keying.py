"""Key slots in SQLite: rows owned by a job, then by its attempt; never counters.

Freeing a slot and handing it to the next waiting job of the key happen in one transaction, so a
key is never idle while somebody waits, and never over its limit.
"""

from __future__ import annotations

from typing import Literal

from trellis.core.admission import KeyFacts
from trellis.core.job import Definition, Head
from trellis.core.lifecycle import Transition
from trellis.core.slots import keeps_slot, slot_effect
from trellis.engines.sql.rows import PARK, record_from
from trellis.engines.sqlite.transaction import Transaction

Park = Literal["ready", "later", "slot", "taken"]


def gather_facts(tx: Transaction, key_hash: str) -> KeyFacts:
    """Gather what admission needs to know about a key."""
    return KeyFacts(
        held(tx, key_hash),
        _value(tx, "key_waiting", key_hash) or 0,
        _value(tx, "key_holder", key_hash),
        _value(tx, "key_newest", key_hash),
        _value(tx, "key_oldest", key_hash),
    )


def held(tx: Transaction, key_hash: str) -> int:
    """Return how many slots of a key are taken."""
    return _value(tx, "key_held", key_hash) or 0


def _value(tx: Transaction, name: str, key_hash: str):  # type: ignore[no-untyped-def] # noqa: ANN202
    row = tx.one(name, key_hash)
    return row[0] if row else None


def park_of(tx: Transaction, definition: Definition, head: Head) -> Park:
    """Say where a waiting job belongs now."""
    if head.run_at > tx.now:
        return "later"
    if definition.key_hash is not None and slot_of(tx, definition.row) is None:
        return "slot"
    return "ready"


def slot_of(tx: Transaction, job: int) -> int | None:
    """Return the slot a job holds for its next or present attempt."""
    row = tx.one("slot_of_job", job)
    return row[0] if row else None


def hand_over(tx: Transaction, key_hash: str) -> None:
    """Give free slots of a key to its waiting jobs, in creation order."""
    while True:
        waiter = tx.one("key_next", key_hash)
        if waiter is None:
            return
        job, policy_number = waiter
        key = tx.books.policy(tx, policy_number).key
        if key is None or held(tx, key_hash) >= key.active:
            return
        tx.run("slot_take", key_hash, job)
        tx.run("key_availability", "ready", job)
        tx.topics.add("ready")


def update_slot(tx: Transaction, transition: Transition) -> None:
    """Do to the job's slot what the transition means for it."""
    slot = slot_of(tx, transition.definition.row)
    if slot is None:
        return
    effect = slot_effect(transition)
    fence = transition.before.fence
    lease = tx.one("session_lease", fence.session) if fence else None
    if effect == "linger" and lease is not None:
        tx.run("slot_linger", tx.lease_now + lease[0], tx.boot_id, slot)
    elif effect == "keep" or keeps_slot(transition.definition, transition.head):
        if transition.head.fence is None:
            tx.run("slot_unclaim", slot)
    else:
        tx.run("slot_free", slot)


def end_lingering(tx: Transaction, name: str, *values: object) -> int:
    """End the lingering of the slots that a query names; hand each key over."""
    slots = tx.rows(name, *values)
    for slot, _, job in slots:
        _end(tx, slot, job)
    for key_hash in sorted({key_hash for _, key_hash, _ in slots}):
        hand_over(tx, key_hash)
    return len(slots)


def _end(tx: Transaction, slot: int, job: int) -> None:
    """Free a slot that lingered, unless its job keeps it for the next attempt and has no other."""
    row = tx.one("record_by_seq", job)
    if row is None or not keeps_slot(*record_from(row)) or slot_of(tx, job) is not None:
        tx.run("slot_free", slot)
        return
    tx.run("slot_unclaim", slot)
    if row[PARK] == "slot":
        tx.run("key_availability", "ready", job)
        tx.topics.add("ready")
