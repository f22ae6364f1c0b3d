"""Schedules through the port: declared by workers, fired by the leader, changed by operators.

`core.schedules` decides; an engine stores the step if the schedule is still as it was read.
Otherwise it is read again and decided again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final

from trellis.core import schedules as rules
from trellis.core.durations import Instant, to_datetime
from trellis.core.job import JobId, NewJob
from trellis.core.schedules import Declared, Schedule, Step
from trellis.core.states import ENDED
from trellis.declaration.ids import new_job_id
from trellis.engines.audit import OPERATOR, By, Change
from trellis.engines.port import Engine
from trellis.engines.schedules import advanced
from trellis.engines.values import CreateResult
from trellis.errors import EngineBusy, ScheduleNotFound

#: How often a decision is made again after a conflict.
_TRIES: Final = 10
#: Schedules read at once, and how many decisions about one schedule follow each other.
_PAGE: Final = 100
_ROUNDS: Final = 20
_KEY_BITS: Final = 192

#: Decides on a change of a schedule at a moment: the new one and what the audit says about it.
Decide = Callable[[Schedule, Instant], tuple[Schedule, Change]]
#: Whether this program speaks for a stored schedule that it does not declare.
Owns = Callable[[Schedule], bool]


async def declare_schedules(
    engine: Engine, service: str, declared: Sequence[Declared], owns: Owns
) -> None:
    """Store what the code of a service declares; retire its own schedules that are gone."""
    names = {each.name for each in declared}
    for _ in range(_TRIES):
        now = await engine.now()
        stored = {each.name: each for each in await engine.schedules([service])}
        added = [rules.declare(each, now) for each in declared if each.name not in stored]
        edits = [
            (stored[each.name], rules.declare_again(stored[each.name], each))
            for each in declared
            if each.name in stored
        ]
        edits += [
            (each, rules.retire(each, now))
            for name, each in stored.items()
            if name not in names and owns(each)
        ]
        is_stored = all(await engine.add_schedules(added)) if added else True
        for before, after in edits:
            if after is not None and await _edit(engine, before, after, now) is None:
                is_stored = False
        if is_stored:
            return
    raise _busy(f"The schedules of {service}")


async def fire_due(engine: Engine) -> Instant | None:
    """Decide and store every due slot; return the next slot, which may be due already.

    An error about one schedule does not keep the others from being due; it is raised at the end.
    """
    due = await engine.due_schedules(_PAGE)
    is_done = len(due.schedules) < _PAGE
    failed: Exception | None = None
    for schedule in due.schedules:
        try:
            is_done = await _fire(engine, schedule, due.now) and is_done
        except Exception as error:  # noqa: BLE001 - raised below
            failed = failed or error
    if failed is not None:
        raise failed
    return due.next_slot if is_done else due.now


async def _fire(engine: Engine, schedule: Schedule, now: Instant) -> bool:
    """Decide the due slots of one schedule, page after page; return whether all are decided.

    Another leader or an operator may have changed it meanwhile: then it is read again later.
    """
    current: Schedule | None = schedule
    for _ in range(_ROUNDS):
        if current is None:
            return False
        if current.next_slot is None or current.next_slot > now:
            return True
        current = await _store(
            engine, rules.decide_slots(current, now, await live_jobs(engine, current))
        )
    return False


async def _edit(
    engine: Engine,
    before: Schedule,
    after: Schedule,
    now: Instant,
    *,
    change: Change | None = None,
    by: By = OPERATOR,
) -> Schedule | None:
    """Store an edit with the slots that it decides; None: the schedule has changed meanwhile."""
    current: Schedule | None = before
    while current is not None:
        is_due = current.next_slot is not None and current.next_slot <= now
        live = await live_jobs(engine, current) if is_due else current.live
        step = rules.edit(current, after, now, live)
        if step == Step(before):  # as it is already: nothing is stored, and nothing is audited
            return before
        if step.is_whole:
            return await _store(engine, step, _with_next(change, before, step), by)
        current = await _store(engine, step)
    return None


def _with_next(change: Change | None, before: Schedule, step: Step) -> Change | None:
    """Return the audit entry; one that would say nothing names the next slots."""
    if change is None or change.after:
        return change
    old, new = (
        None if slot is None else to_datetime(slot).isoformat()
        for slot in (before.next_slot, step.schedule.next_slot)
    )
    return change._replace(before={"next": old}, after={"next": new})


async def _store(
    engine: Engine, step: Step, change: Change | None = None, by: By = OPERATOR
) -> Schedule | None:
    """Store a step; return the schedule as it is stored then, None if it must be read again."""
    records = await engine.advance_schedule(step, change, by)
    if records is None:
        return None
    after = advanced(step, records)
    return after._replace(version=after.version + 1)


async def live_jobs(engine: Engine, schedule: Schedule) -> Sequence[JobId]:
    """Return the jobs of a schedule that have not ended, as far as its policy needs that."""
    ids = schedule.live
    if schedule.plan.overlap != "skip" or not ids:
        return ids
    records = (await engine.load(ids)).records
    return [
        record.definition.id
        for record in records
        if record is not None and record.head.state not in ENDED
    ]


async def find_schedule(engine: Engine, service: str, name: str) -> Schedule:
    """Return a schedule; raise `ScheduleNotFound`."""
    for each in await engine.schedules([service]):
        if each.name == name:
            return each
    raise ScheduleNotFound(
        f"There is no schedule {service}/{name} here. See them with: trellis schedules"
    )


async def change_schedule(
    engine: Engine, service: str, name: str, decide: Decide, by: By
) -> Schedule:
    """Change a schedule with an audit entry; return it as it is stored then."""
    for _ in range(_TRIES):
        schedule = await find_schedule(engine, service, name)
        now = await engine.now()
        after, change = decide(schedule, now)
        stored = await _edit(engine, schedule, after, now, change=change, by=by)
        if stored is not None:
            return stored
    raise _busy(f"The schedule {service}/{name}")


async def run_schedule(
    engine: Engine, service: str, name: str, by: By
) -> tuple[NewJob, CreateResult]:
    """Create a job of a schedule now, outside of its slots; return the request and the answer."""
    for _ in range(_TRIES):
        schedule = await find_schedule(engine, service, name)
        new = rules.job_of(schedule, new_job_id(), None, secrets.randbits(_KEY_BITS))
        answer = await engine.run_schedule(schedule, new, by)
        if answer is not None:
            return new, answer
    raise _busy(f"The schedule {service}/{name}")


def _busy(what: str) -> EngineBusy:
    return EngineBusy(
        f"{what} changed again and again during the call. Nothing was stored; try again."
    )
