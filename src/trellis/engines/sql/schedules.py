"""Schedules on the SQL engines: their rows, the ledger of slots, and the jobs that slots create.

A transaction that stores a step first locks the row of its schedule. Of two leaders that decided
the same slots, the second waits and finds another version. On PostgreSQL the gates of the jobs were
passed before (`gates.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trellis.core.durations import Instant
from trellis.core.job import JobId, NewJob
from trellis.core.schedules import (
    KEEP_SLOTS,
    Schedule,
    SlotDecision,
    Step,
    remember,
)
from trellis.engines.audit import By, Change, run_of
from trellis.engines.schedules import (
    DueSchedules,
    SlotRecord,
    advanced,
    decode_schedule,
    encode_schedule,
    slot_record,
)
from trellis.engines.sql import audit, create
from trellis.engines.sql.rows import Row
from trellis.engines.sql.transaction import Storage, Transaction
from trellis.engines.values import Accepted, CreateResult, Replaced

#: After every slot.
_LAST: Final = 2**62


# -- changes -----------------------------------------------------------------------------------


async def add_schedules(tx: Transaction, added: Sequence[Schedule]) -> list[bool]:
    """Store new schedules; say which were not there before."""
    return [await _add(tx, each) for each in added]


async def advance_schedule(
    tx: Transaction, storage: Storage, step: Step, change: Change | None, by: By
) -> list[SlotRecord] | None:
    """Store a step: its jobs, its entries of the ledger, the schedule; None: decide again."""
    schedule = step.schedule
    if not await _lock(tx, schedule):
        return None
    if step.until is not None:
        await tx.read_clock()
        if step.until <= tx.now:
            return None
    slots = tx.array([each.slot for each in step.slots])
    rows = await tx.rows("slot_known", schedule.service, schedule.name, slots)
    known = {slot for (slot,) in rows}
    jobs = {slot: new for slot, new in step.jobs if slot not in known}
    answers = dict(zip(jobs, await _create(tx, storage, list(jobs.values())), strict=True))
    records = [
        slot_record(each, answers.get(each.slot), tx.now)
        for each in step.slots
        if each.slot not in known
    ]
    if records:
        await tx.run("slot_prune", schedule.service, schedule.name, tx.now - KEEP_SLOTS)
        rows = [slot_row(schedule.service, schedule.name, each) for each in records]
        await tx.run_many("slot_add", rows)
    await _update(tx, advanced(step, records))
    if change is not None:
        await audit.record(tx, change, by)
    return records


async def run_schedule(
    tx: Transaction, storage: Storage, schedule: Schedule, new: NewJob, by: By
) -> CreateResult | None:
    """Create a job of a schedule outside of its slots; None: the schedule has changed."""
    if not await _lock(tx, schedule):
        return None
    (answer,) = await _create(tx, storage, [new])
    if isinstance(answer, Accepted | Replaced):
        await _update(tx, remember(schedule, [new.id]))
        await audit.record(tx, run_of(schedule.title, new.id), by)
    return answer


async def _lock(tx: Transaction, schedule: Schedule) -> bool:
    guard = (schedule.service, schedule.name, schedule.version)
    return await tx.value("schedule_lock", *guard) is not None


async def _create(
    tx: Transaction, storage: Storage, jobs: Sequence[NewJob]
) -> Sequence[CreateResult]:
    if not jobs:
        await tx.read_clock()
        return ()
    return await create.create(tx, storage, jobs)


async def _add(tx: Transaction, schedule: Schedule) -> bool:
    row = (schedule.service, schedule.name, *_columns(schedule))
    return bool(await tx.changed("schedule_add", *row))


async def _update(tx: Transaction, schedule: Schedule) -> None:
    """Replace the row, which the transaction has locked."""
    await tx.run("schedule_set", *_columns(schedule), schedule.service, schedule.name)


def _columns(schedule: Schedule) -> tuple[Instant | None, Instant | None, str]:
    return schedule.next_slot, schedule.retired_at, encode_schedule(schedule)


def slot_row(service: str, name: str, record: SlotRecord) -> Row:
    """Return the columns of an entry of the ledger."""
    slot, outcome, late, why, through = record.decision
    return (
        service, name, slot, outcome, late, why, through,
        record.job_id, record.decided_at,
    )  # fmt: skip


# -- reads -------------------------------------------------------------------------------------


async def schedules(tx: Transaction, services: Sequence[str]) -> list[Schedule]:
    """Return the schedules of these services, or of all; by name."""
    rows = await tx.rows("schedule_list", tx.array(list(services)), not services)
    return [decode_schedule(*row) for row in rows]


async def due_schedules(tx: Transaction, limit: int) -> DueSchedules:
    """Return the schedules with a due slot, the one that waits longest first."""
    await tx.read_clock()
    rows = await tx.rows("schedule_due", tx.now, limit)
    coming = await tx.value("schedule_next", tx.now)
    return DueSchedules(tx.now, tuple(decode_schedule(*row) for row in rows), coming)


async def slots(
    tx: Transaction, service: str, name: str, before: Instant | None, limit: int
) -> list[SlotRecord]:
    """Return a part of the ledger, the latest slots first."""
    until = _LAST if before is None else before
    return [
        SlotRecord(
            SlotDecision(slot, outcome, bool(late), why, through),
            None if job_id is None else JobId(job_id),
            decided_at,
        )
        for slot, outcome, late, why, through, job_id, decided_at in await tx.rows(
            "slot_list", service, name, until, limit
        )
    ]
