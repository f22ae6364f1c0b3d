"""The rows of a projection that come from states: batches, links, key slots, slots of schedules.

A state is stored whole, in place of what was there, so that the last message about it decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from trellis.core.batches import Batch, is_success
from trellis.core.durations import Instant
from trellis.core.schedules import KEEP_SLOTS
from trellis.core.states import LIVE, State
from trellis.engines.projection import (
    Projected,
    ProjectedArchiving,
    ProjectedBatch,
    ProjectedEvent,
    ProjectedKey,
    ProjectedLinks,
    ProjectedMember,
    ProjectedSlot,
)
from trellis.engines.sql.batches import SUCCESSES
from trellis.engines.sql.rows import Row, encode_request
from trellis.engines.sql.schedules import slot_row
from trellis.engines.sql.transaction import Transaction

T = TypeVar("T")


def those(changes: Iterable[object], kind: type[T]) -> list[T]:
    """Return the changes of one kind; a page is searched for each of the kinds."""
    return [each for each in changes if type(each) is kind]


# -- batches -----------------------------------------------------------------------------------


async def link_members(tx: Transaction, members: Sequence[ProjectedMember]) -> None:
    """Store which existing jobs stand for members; before the events that come after that."""
    for each in members:
        if each.is_linked:
            await tx.run("member_link", tx.array([each.job]), each.batch, tx.array(SUCCESSES))


async def store_batches(tx: Transaction, changes: Sequence[Projected]) -> None:
    """Store all batches of a page, before the members that come earlier in it.

    A batch may be stored before the one around it, or after it: the second of them joins both.
    """
    known = {each.id: each for each in those(changes, ProjectedBatch)}
    removed = [(name,) for name, each in known.items() if each.batch is None]
    there = [each.batch for each in known.values() if each.batch is not None]
    await tx.run_many("projection_batch", [_batch_row(batch) for batch in there])
    parents = {batch.new.id: batch.new.parent for batch in there if batch.new.parent is not None}
    parents |= {inner: each.id for each in known.values() if each.batch for inner in each.inner}
    await tx.run_many("projection_batch_parent", [(outer, name) for name, outer in parents.items()])
    await tx.run_many("projection_batch_removed", removed)


async def store_members(
    tx: Transaction, changes: Sequence[Projected], events: Sequence[ProjectedEvent]
) -> None:
    """Store new members of batches, and which members have ended."""
    joined: dict[str, list[str]] = {}
    for each in those(changes, ProjectedMember):
        if not each.is_linked:
            joined.setdefault(each.batch, []).append(each.job)
    for name, jobs in joined.items():
        await tx.run("member_add", tx.array(jobs), name)
    await _finish_members(tx, events)


async def _finish_members(tx: Transaction, events: Sequence[ProjectedEvent]) -> None:
    """Store the first end of each job in the batches that wait for it."""
    ends: dict[int, tuple[State, Instant]] = {}
    for each in events:
        definition, head = each.record
        if head.state not in LIVE and head.finished_at is not None:
            ends.setdefault(definition.row, (head.state, head.finished_at))
    if not ends:
        return
    for _, job in await tx.rows("member_waiting", tx.array(sorted(ends))):
        state, at = ends[job]
        values = (state.value, is_success(state), at)
        await tx.run("member_finish", *values, tx.array([job]))


def _batch_row(batch: Batch) -> Row:
    new = batch.new
    then = None if new.then is None else encode_request(new.then)
    return (
        batch.row, new.id, new.service, new.name, new.fire_on, new.on_failure, new.parent, then,
        batch.created_at, batch.sealed_at, batch.cancelled_at, batch.stopping_at,
        batch.finished_at, batch.succeeded, batch.fan_in,
    )  # fmt: skip


# -- links, keys, schedules --------------------------------------------------------------------


async def store_links(tx: Transaction, changes: Sequence[Projected]) -> None:
    """Store which jobs wait for which."""
    known = {each.job: each for each in those(changes, ProjectedLinks)}
    await tx.run_many("projection_unlink", [(job,) for job in known])
    rows = [
        (each.job, bond.prerequisite, bond.on, bond.ended and bond.ended.value, bond.generation)
        for each in known.values()
        for bond in each.bonds
    ]
    await tx.run_many("projection_link", rows)


async def store_keys(
    tx: Transaction, changes: Sequence[Projected], events: Sequence[ProjectedEvent]
) -> None:
    """Store who holds the slots of keys, and which of their jobs are claimable because of that."""
    known = {each.key_hash: each for each in those(changes, ProjectedKey)}
    # A removed job has no number any more: its order, below zero, stands for it.
    rows = [
        (each.key_hash, slot.job, -slot.order, *(slot.fence or (None, None)),
         slot.linger_until)
        for each in known.values()
        for slot in each.slots
    ]  # fmt: skip
    await tx.run_many("projection_slots_gone", [(key_hash,) for key_hash in known])
    await tx.run_many("projection_slots", rows)
    touched = {each.record.definition.key_hash for each in events} | known.keys()
    hashes = sorted(each for each in touched if each is not None)
    if hashes:
        await tx.run("projection_claimable", tx.array(hashes))


async def store_slots(tx: Transaction, changes: Sequence[Projected]) -> None:
    """Store decided slots of schedules; drop what the ledger no longer keeps."""
    slots = those(changes, ProjectedSlot)
    decided = {(each.service, each.schedule): each.record.decided_at for each in slots}
    for names, at in decided.items():
        await tx.run("slot_prune", *names, at - KEEP_SLOTS)
    await tx.run_many(
        "projection_slot", [slot_row(each.service, each.schedule, each.record) for each in slots]
    )


async def store_archiving(tx: Transaction, changes: Sequence[Projected]) -> None:
    """Store which expired jobs wait for an archive: retention looks at them no more."""
    waiting = those(changes, ProjectedArchiving)
    await tx.run_many("archive_add", [(each.row, each.service, each.since) for each in waiting])
    await tx.run_many("projection_unkeep", [(each.row, each.version) for each in waiting])
