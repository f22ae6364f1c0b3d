"""Schedules through the port: declared by workers, fired by the leader, changed by operators.

`core.schedules` decides; an engine stores the decision if the schedule is still as it was read.
Otherwise it is read again and decided again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final

from trellis.core import schedules as rules
from trellis.core.durations import Instant
from trellis.core.job import JobId, NewJob
from trellis.core.schedules import Declared, Schedule
from trellis.core.states import ENDED
from trellis.declaration.ids import new_job_id
from trellis.engines.audit import By, Change
from trellis.engines.port import Engine
from trellis.engines.schedules import SchedulePut
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
    wanted = {each.name: each for each in declared}
    for _ in range(_TRIES):
        now = await engine.now()
        stored = {each.name: each for each in await engine.schedules([service])}
        changed = [rules.declare(stored.get(each.name), each, now) for each in declared]
        changed += [
            rules.retire(each, now)
            for name, each in stored.items()
            if name not in wanted and owns(each)
        ]
        puts = [SchedulePut(each) for each in changed if each is not None]
        if not puts or all(await engine.put_schedules(puts)):
            return
    raise _busy(f"The schedules of {service}")


async def fire_due(engine: Engine) -> Instant | None:
    """Decide and store every due slot; return the next slot, which may be due already.

    An error about one schedule does not keep the others from being due; it is raised at the end.
    """
    due = await engine.due_schedules(_PAGE)
    failed: Exception | None = None
    for schedule in due.schedules:
        try:
            await _fire(engine, schedule, due.now)
        except Exception as error:  # noqa: BLE001 - raised below
            failed = failed or error
    if failed is not None:
        raise failed
    return due.now if len(due.schedules) == _PAGE else due.next_slot


async def _fire(engine: Engine, schedule: Schedule, now: Instant) -> None:
    """Decide the due slots of one schedule, page after page."""
    current: Schedule | None = schedule
    for _ in range(_ROUNDS):
        if current is None or current.next_slot is None or current.next_slot > now:
            return
        live = await _unfinished(engine, current.live)
        await engine.fire(rules.decide_slots(current, now, live))
        # Read again: another leader may have decided, or an operator changed the schedule.
        found = await engine.schedules([schedule.service])
        current = next((each for each in found if each.name == schedule.name), None)


async def _unfinished(engine: Engine, ids: Sequence[JobId]) -> list[JobId]:
    if not ids:
        return []
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
        changed, change = decide(schedule, await engine.now())
        if (await engine.put_schedules([SchedulePut(changed, change, by)]))[0]:
            return await find_schedule(engine, service, name)
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
