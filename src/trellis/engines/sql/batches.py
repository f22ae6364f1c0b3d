"""Batches: members are rows, finished once; a batch finishes under its own lock.

A transaction that settles members holds their batches and all batches around them (`hold`), taken
before keys and queue rows. So of two transactions that end the last two members, the second sees
what the first has stored, and exactly one of them finishes the batch. Creating members takes a
weaker lock, which only sealing and cancelling wait for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from trellis.core.batches import (
    ENDED_READERS,
    KEEP_BATCHES,
    KEEP_MEMBERS,
    Batch,
    BatchState,
    NewBatch,
    finish,
    is_success,
    lacks_tenant,
    stops_the_rest,
)
from trellis.core.durations import Instant
from trellis.core.followups import is_member
from trellis.core.job import Fence, JobId, NewJob, Relations
from trellis.core.lifecycle import Transition
from trellis.core.states import State
from trellis.engines.audit import By, cancel_of, seal_of
from trellis.engines.batches import BatchFilter, BatchStatus, Member
from trellis.engines.sql import audit
from trellis.engines.sql.rows import (
    Row,
    decode_relations,
    decode_request,
    encode_request,
    record_from,
)
from trellis.engines.sql.transaction import Storage, Transaction
from trellis.engines.values import Accepted, Coalesced, CreateResult, Replaced

_NO_LIMIT: Final = 2**62
#: The states of a success, as words.
SUCCESSES: Final = sorted(state.value for state in State if is_success(state))
#: Whether batches in a state were cancelled, have finished and are sealed.
_LISTED: Final[dict[BatchState | None, tuple[bool | None, ...]]] = {
    None: (None, None, None),
    "open": (False, False, False),
    "sealed": (False, False, True),
    "finished": (False, True, None),
    "cancelled": (True, None, None),
}


# -- members -----------------------------------------------------------------------------------


async def lock_to_join(tx: Transaction, jobs: Sequence[NewJob]) -> Mapping[str, Batch]:
    """Return the batches these jobs are to join; none is sealed until the transaction ends."""
    names = sorted({batch for new in jobs if (batch := _batch_of(new)) is not None})
    if not names:
        return {}
    rows = await tx.rows("batch_join", tx.array(names))
    return {batch.new.id: batch for batch in map(_batch_from, rows)}


async def current_spawners(tx: Transaction, jobs: Sequence[NewJob]) -> set[Fence]:
    """Return which attempts that create these jobs are the present ones of their jobs."""
    wanted = {new.spawner: _parent_of(new) for new in jobs if new.spawner is not None}
    return {
        fence
        for fence, parent in sorted(wanted.items())
        if await tx.value("member_fence", parent, fence.session, fence.token) is not None
    }


async def join(tx: Transaction, jobs: Sequence[NewJob], results: Sequence[CreateResult]) -> None:
    """Make the jobs of a call members of their batches; a coalesced one stands for another."""
    created: defaultdict[str, list[JobId]] = defaultdict(list)
    linked: defaultdict[str, list[JobId]] = defaultdict(list)
    for new, result in zip(jobs, results, strict=True):
        batch = _batch_of(new)
        if batch is None:
            continue
        if isinstance(result, Accepted | Replaced):
            created[batch].append(new.id)
        elif isinstance(result, Coalesced):
            linked[batch].append(result.existing)
    for batch, ids in created.items():
        await tx.run("member_add", tx.array(ids), batch)
    for batch, ids in linked.items():
        # First the mark: what ends after it ends together with its memberships.
        await tx.run("member_watch", tx.array(sorted(ids)))
        await tx.run("member_link", tx.array(ids), batch, tx.array(SUCCESSES))


def _batch_of(new: NewJob) -> str | None:
    return None if new.relations is None else new.relations.batch


def _parent_of(new: NewJob) -> JobId | None:
    return None if new.relations is None else new.relations.parent


# -- finishing ---------------------------------------------------------------------------------


async def hold(tx: Transaction, transitions: Sequence[Transition]) -> list[Batch]:
    """Return the batches that wait for these jobs, and those around them, locked in order."""
    jobs = tx.array(sorted({each.definition.row for each in transitions}))
    return [_batch_from(row) for row in await tx.rows("batch_hold", jobs)]


async def finish_members(
    tx: Transaction, storage: Storage, held: Sequence[Batch], ended: Sequence[Transition]
) -> None:
    """Record that members have ended; finish the batches that waited only for them."""
    states = {each.definition.row: each.head.state for each in ended}
    found = await tx.rows("member_waiting", tx.array(sorted(states)))
    if not found:
        return
    if not {batch for batch, _ in found} <= {batch.row for batch in held}:
        # A batch took one of the jobs as its member after `held` was read.
        held = await hold(tx, ended)
    known = {batch.row: batch for batch in held}
    by_state: defaultdict[State, set[int]] = defaultdict(set)
    stopping: set[int] = set()
    for batch, job in found:
        by_state[states[job]].add(job)
        if stops_the_rest(known[batch], states[job]):
            stopping.add(batch)
    for state, jobs in by_state.items():
        values = (state.value, is_success(state), tx.now)
        await tx.run("member_finish", *values, tx.array(sorted(jobs)))
    for batch in sorted(stopping):  # maintenance cancels the members
        below = [row for (row,) in await tx.rows("batch_below", batch)]
        await tx.run("batch_stop", tx.now, tx.array(below))
    await _finish(tx, storage, known)


async def _finish(tx: Transaction, storage: Storage, batches: Iterable[int]) -> None:
    """Finish those of these batches that are complete, then those around them.

    The fan-in job of a batch in a batch is a member of the outer one, from the same moment.
    """
    waiting = sorted(set(batches))
    while waiting:
        found = [_batch_from(r) for r in await tx.rows("batch_complete", tx.array(waiting))]
        waiting = []
        for batch in found:
            succeeded = await tx.one("batch_unsuccessful", batch.row, batch.row) is None
            first = await _first_member(tx, batch) if lacks_tenant(batch) else None
            after, job = finish(batch, tx.now, succeeded=succeeded, first=first)
            await tx.run(
                "batch_finish", after.finished_at, after.succeeded, after.fan_in, batch.row
            )
            tx.topics.add("settled")
            if job is not None:
                await create_following(tx, storage, [job])
            if batch.new.parent is not None:
                outer = await load(tx, batch.new.parent)
                waiting += [] if outer is None else [outer.row]


async def _first_member(tx: Transaction, batch: Batch) -> Relations | None:
    """Return what the first member of a batch belongs to."""
    return decode_relations(await tx.value("batch_first", batch.row))


async def create_following(tx: Transaction, storage: Storage, jobs: Sequence[NewJob]) -> None:
    """Store jobs that follow others; those that are stored already stay as they are.

    They pass no admission: what was promised at the end of a job is created even while a queue
    drains, and waits for its key even if the key is full.
    """
    if not jobs:
        return
    known = {row[0] for row in await tx.rows("followup_known", tx.array([new.id for new in jobs]))}
    missing = [new for new in jobs if new.id not in known]
    if not missing:
        return
    await storage.insert_following(missing)
    for new in missing:
        if is_member(new):
            await tx.run("member_add", tx.array([new.id]), _batch_of(new))
    tx.topics.add("ready")


# -- verbs -------------------------------------------------------------------------------------


async def open_batch(tx: Transaction, new: NewBatch) -> Batch | None:
    """Open a batch; None if the one around it takes no more. Opening it again changes nothing."""
    if new.parent is not None:
        rows = await tx.rows("batch_join", tx.array([new.parent]))
        if not rows or _batch_from(rows[0]).admits != "members":
            return await load(tx, new.id)
    await tx.read_clock()
    then = None if new.then is None else encode_request(new.then)
    names = (new.id, new.service, new.name, new.fire_on, new.on_failure, new.parent)
    await tx.run("batch_open", *names, then, tx.now)
    return await load(tx, new.id)


async def seal_batch(
    tx: Transaction, storage: Storage, batch_id: str, by: By | None
) -> Batch | None:
    """Let a batch finish once its members have; None if there is no such batch."""
    batch = await _take(tx, batch_id)
    if batch is None or batch.sealed_at is not None or batch.finished_at is not None:
        return batch
    await tx.run("batch_seal", tx.now, tx.array([batch.row]))
    if by is not None:
        await audit.record(tx, seal_of(batch_id), by)
    await _finish(tx, storage, [batch.row])
    return await load(tx, batch_id)


async def cancel_batch(tx: Transaction, storage: Storage, batch_id: str, by: By) -> Batch | None:
    """Take no more members, fire nothing, and have the unfinished members cancelled."""
    batch = await _take(tx, batch_id)
    if batch is None or batch.admits == "nothing":
        return batch
    below = tx.array([row for (row,) in await tx.rows("batch_below", batch.row)])
    for name in ("batch_cancel", "batch_seal", "batch_stop"):
        await tx.run(name, tx.now, below)
    await audit.record(tx, cancel_of(batch_id, batch.state), by)
    await _finish(tx, storage, sorted(row for (row,) in await tx.rows("batch_below", batch.row)))
    return await load(tx, batch_id)


async def finish_batches(tx: Transaction, storage: Storage, limit: int) -> int:
    """Finish batches that are complete and were left behind; return how many."""
    rows = await complete(tx, limit)
    await tx.lock("batch_lock", rows)
    await tx.read_clock()
    await _finish(tx, storage, rows)
    return len(rows)


async def complete(tx: Transaction, limit: int) -> list[int]:
    """Return batches that are complete and have not finished, the oldest first."""
    return [row for (row,) in await tx.rows("batch_left", limit)]


async def _take(tx: Transaction, batch_id: str) -> Batch | None:
    """Return a batch that nothing else changes until the transaction ends."""
    found = {row[1]: row for row in await tx.rows("batch_take", batch_id, batch_id)}
    await tx.read_clock()
    return _batch_from(found[batch_id]) if batch_id in found else None


async def prune(tx: Transaction, limit: int) -> None:
    """Keep expired members that batches need for longer; remove batches that are long over."""
    await keep_members(tx, tx.now, limit)
    await tx.run("prune_batches", tx.array(ENDED_READERS), tx.now - KEEP_BATCHES, limit)


async def keep_members(tx: Transaction, now: Instant, limit: int) -> None:
    """Keep those jobs for longer that retention looks at next and that batches need."""
    await tx.run("keep_members", tx.array(ENDED_READERS), now + KEEP_MEMBERS, now, limit)


# -- reads -------------------------------------------------------------------------------------


async def load(tx: Transaction, batch_id: str) -> Batch | None:
    """Return a batch."""
    row = await tx.one("batch_read", tx.array([batch_id]))
    return None if row is None else _batch_from(row)


async def batch_statuses(tx: Transaction, batch_ids: Sequence[str]) -> list[BatchStatus | None]:
    """Return each of these batches with the number of its members in each state."""
    found = [_batch_from(row) for row in await tx.rows("batch_read", tx.array(list(batch_ids)))]
    rows = tx.array([each.row for each in found])
    inner = [_batch_from(row) for row in await tx.rows("batch_in", rows)]
    counts: defaultdict[int, dict[State, int]] = defaultdict(dict)
    finished: Counter[int] = Counter()
    for row, state, number, ended in sorted(map(tuple, await tx.rows("batch_counts", rows))):
        counts[row][State(state)] = number
        finished[row] += ended
    statuses = {
        each.new.id: BatchStatus(
            each,
            counts[each.row],
            finished[each.row],
            tuple(child for child in inner if child.new.parent == each.new.id),
        )
        for each in found
    }
    return [statuses.get(batch_id) for batch_id in batch_ids]


async def list_batches(
    tx: Transaction, where: BatchFilter, after: int | None, limit: int
) -> list[Batch]:
    """Return a page of batches, the newest first."""
    before = _NO_LIMIT if after is None else after
    opened_before = _NO_LIMIT if where.opened_before is None else where.opened_before
    rows = await tx.rows("batch_list", before, opened_before, *_LISTED[where.state], limit)
    return [_batch_from(row) for row in rows]


async def members(tx: Transaction, batch_id: str, after: int, limit: int) -> list[Member]:
    """Return members of a batch, in creation order, behind the one with this number."""
    found = await load(tx, batch_id)
    if found is None:
        return []
    rows = await tx.rows("member_list", found.row, after, limit)
    return [Member(record_from(row), row[-1]) for row in rows]


def _batch_from(row: Row) -> Batch:
    (
        seq, batch_id, service, name, fire_on, on_failure, parent, then, created_at, sealed_at,
        cancelled_at, stopping_at, finished_at, succeeded, fan_in,
    ) = row  # fmt: skip
    job = None if then is None else decode_request(then)
    return Batch(
        NewBatch(batch_id, service, name, fire_on, on_failure, parent, job),
        seq,
        created_at,
        sealed_at,
        cancelled_at,
        stopping_at,
        finished_at,
        None if succeeded is None else bool(succeeded),
        fan_in,
    )
