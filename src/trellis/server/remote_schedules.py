"""Schedules of remote programs: the server decides each step itself and stores its own decision.

A remote program sends the schedule as it shall be and the version that it has read, never slots,
jobs or the time of the next slot. If the schedule is still at that version, the server decides what
is due by its own clock; otherwise the answer is None, as from every engine.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from starlette.exceptions import HTTPException

from trellis.core import schedules as rules
from trellis.core.access import MUTATE
from trellis.core.durations import Instant
from trellis.core.job import JobId
from trellis.core.schedules import Declared, Schedule, Template
from trellis.declaration.secrets import masked
from trellis.engines.audit import Action, By, Change
from trellis.engines.http.protocol import WantedSchedule
from trellis.engines.port import Engine
from trellis.engines.schedules import SlotRecord
from trellis.engines.values import CreateResult
from trellis.operations.schedules import differences
from trellis.schedules import live_jobs
from trellis.server.engine_access import Gate, deny

_KEY_BITS: Final = 192


async def add(engine: Engine, added: Sequence[Schedule]) -> list[bool]:
    """Store new schedules as their declarations say: nothing is decided about them yet."""
    now = await engine.now()
    declared = [Declared(each.service, each.name, each.declared, each.template) for each in added]
    return await engine.add_schedules(
        [rules.declare(rules.check_declared(each), now) for each in declared]
    )


async def advance(
    engine: Engine, gate: Gate, wanted: WantedSchedule, action: Action | None, by: By
) -> list[SlotRecord] | None:
    """Decide the due slots of a schedule, or an edit of it, and store the step."""
    before = await _stored(engine, wanted.service, wanted.name, wanted.version)
    if before is None:
        return None
    now = await engine.now()
    if wanted.until is not None and wanted.until <= now:
        return None
    after = _edited(before, wanted, now)
    if (after.changes, after.windows) != (before.changes, before.windows) and not gate.has(MUTATE):
        deny(MUTATE)
    live = await live_jobs(engine, before)
    if after == before and action is None:
        step = rules.decide_slots(before, now, live)
        return await engine.advance_schedule(step) if step.slots else []
    _check(before, after)
    step = rules.edit(before, after, now, live)
    if not step.is_whole:  # the caller reads the schedule again, and lets the slots be decided
        return None
    return await engine.advance_schedule(step, _change(before, after, action), by)


async def run(
    engine: Engine, schedule: tuple[str, str, int], job_id: JobId, by: By
) -> CreateResult | None:
    """Create a job of a schedule, named by service, name and version, outside of its slots."""
    stored = await _stored(engine, *schedule)
    if stored is None:
        return None
    new = rules.job_of(stored, job_id, None, secrets.randbits(_KEY_BITS))
    return await engine.run_schedule(stored, new, by)


async def _stored(engine: Engine, service: str, name: str, version: int) -> Schedule | None:
    """Return the schedule; None if it is not at this version."""
    for each in await engine.schedules([service]):
        if (each.name, each.version) == (name, version):
            return each
    return None


def _edited(before: Schedule, wanted: WantedSchedule, now: Instant) -> Schedule:
    """Return the schedule as it shall be; a payload that the caller read masked is as before."""
    changes = dict(wanted.changes)
    if "payload" in changes and "payload" in before.changes:
        known = str(before.changes["payload"])
        changes["payload"] = _unmasked(str(changes["payload"]), known, before.template)
    payload = _unmasked(wanted.declared.payload, before.declared.payload, before.template)
    retired_at = (before.retired_at or now) if wanted.is_retired else None
    return before._replace(
        declared=wanted.declared._replace(payload=payload),
        template=wanted.template,
        changes=changes,
        windows=wanted.windows,
        retired_at=retired_at,
    )


def _unmasked(sent: str, stored: str, template: Template) -> str:
    return stored if sent == masked(stored, template.policy, "payload") else sent


def _check(before: Schedule, after: Schedule) -> None:
    """Raise for values that are not allowed; pausing needs no check of the rest."""
    declared = before.declared._asdict()
    wrong = {
        name for name, value in after.changes.items() if type(value) is not type(declared.get(name))
    }
    if wrong:
        raise HTTPException(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{min(wrong)}={after.changes[min(wrong)]!r} does not fit. Nothing was stored.",
        )
    unpaused = before.plan._replace(paused=after.plan.paused)
    if (unpaused, before.template) != (after.plan, after.template):
        rules.check_plan(after.plan, after.template)


def _change(before: Schedule, after: Schedule, action: Action | None) -> Change | None:
    """Return the entry of the audit, with the values that the server has seen."""
    if action is None:
        return None
    if not action.startswith("schedule."):
        raise HTTPException(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"{action} is no change of a schedule."
        )
    return Change(action, before.title, *differences(before, after))
