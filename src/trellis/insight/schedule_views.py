"""The public values of schedules: what is in force, what operators changed, the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final, Literal

from trellis.core.durations import SECOND, Instant, in_words, to_datetime
from trellis.core.schedules import (
    TOLERANCE,
    Missed,
    Overlap,
    Plan,
    Schedule,
    SlotOutcome,
    Template,
)
from trellis.core.timing import find_zone, iter_slots
from trellis.declaration.secrets import masked
from trellis.engines.schedules import SlotRecord
from trellis.errors import ConfigurationError

#: How many coming runs a view has.
NEXT_RUNS: Final = 5
#: How many slots are looked at to find them between the windows.
_LOOKED_AT: Final = 5000


@dataclass(frozen=True, slots=True)
class WindowView:
    """A time of maintenance: slots from `start` until before `end` are skipped."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """One schedule at one moment."""

    service: str
    name: str
    type: str
    queue: str
    #: `retired`: the code no longer declares it, and it is never due.
    state: Literal["active", "paused", "retired"]
    #: A cron expression, or `@every 15m`.
    when: str
    tz: str
    #: In seconds.
    jitter: float
    missed: Missed
    overlap: Overlap
    #: Secrets are masked.
    payload: Any
    #: The next runs in UTC, by default five; without slots in windows, none while it is paused.
    next_runs: tuple[datetime, ...]
    #: What operators changed: the values that the code declares instead.
    declared: Mapping[str, Any]
    windows: tuple[WindowView, ...]
    #: Since when a slot is due that no worker has decided; None: it is on time.
    behind_since: datetime | None
    #: The clock was set back: slots until then were decided already.
    ahead_until: datetime | None
    retired_at: datetime | None
    #: False: this host does not know the time zone, so the next runs are not known here.
    is_zone_known: bool


@dataclass(frozen=True, slots=True)
class SlotView:
    """What one slot of a schedule led to."""

    slot: datetime
    outcome: SlotOutcome
    #: It was decided more than a minute after its time.
    late: bool
    #: Why no job was created: `paused`, `window`, `overlap`, `edited`, `retired`, or why the job
    #: was not accepted.
    why: str | None
    #: The last of several slots that this one entry stands for.
    through: datetime | None
    #: The job that it created, or the one that kept a new job out.
    job_id: str | None
    decided_at: datetime


def schedule_view(schedule: Schedule, now: Instant, runs: int = NEXT_RUNS) -> ScheduleView:
    """Return the view of a stored schedule, with so many of its next runs."""
    plan, template, coming = schedule.plan, schedule.template, schedule.next_slot
    is_known = _is_known(plan.tz)
    shown = plan_values(schedule.declared, template)
    is_behind = coming is not None and now - coming > TOLERANCE
    return ScheduleView(
        service=schedule.service,
        name=schedule.name,
        type=template.type,
        queue=template.queue,
        state=_state(schedule),
        when=plan.when,
        tz=plan.tz,
        jitter=plan.jitter / SECOND,
        missed=plan.missed,
        overlap=plan.overlap,
        payload=plan_values(plan, template)["payload"],
        next_runs=tuple(map(to_datetime, next_runs(schedule, now, runs) if is_known else ())),
        declared={name: shown[name] for name in schedule.changes},
        windows=tuple(WindowView(*map(to_datetime, each)) for each in schedule.windows),
        behind_since=to_datetime(coming) if is_behind and coming is not None else None,
        ahead_until=_ahead(schedule, now) if is_known else None,
        retired_at=None if schedule.retired_at is None else to_datetime(schedule.retired_at),
        is_zone_known=is_known,
    )


def _is_known(tz: str) -> bool:
    try:
        find_zone(tz)
    except ConfigurationError:
        return False
    return True


def _state(schedule: Schedule) -> Literal["active", "paused", "retired"]:
    if schedule.retired_at is not None:
        return "retired"
    return "paused" if schedule.plan.paused else "active"


def _ahead(schedule: Schedule, now: Instant) -> datetime | None:
    plan, coming = schedule.plan, schedule.next_slot
    first = next(iter_slots(plan.when, plan.tz, now), None)
    if coming is None or first is None or coming <= first:
        return None
    return to_datetime(coming)


def next_runs(schedule: Schedule, now: Instant, count: int) -> list[Instant]:
    """Return the next moments at which a schedule creates a job, as things stand."""
    plan, coming = schedule.plan, schedule.next_slot
    if coming is None or plan.paused:
        return []
    slots = islice(iter_slots(plan.when, plan.tz, max(now, coming - 1)), _LOOKED_AT)
    free = (
        slot
        for slot in slots
        if not any(window.start <= slot < window.end for window in schedule.windows)
    )
    return list(islice(free, count))


def plan_values(plan: Plan, template: Template) -> dict[str, Any]:
    """Return the fields of a plan as they are shown: durations in words, secrets masked."""
    payload = json.loads(masked(plan.payload, template.policy, "payload"))
    return {**plan._asdict(), "jitter": in_words(plan.jitter), "payload": payload}


def slot_view(record: SlotRecord) -> SlotView:
    """Return the view of an entry of the ledger."""
    slot, outcome, late, why, through = record.decision
    return SlotView(
        to_datetime(slot),
        outcome,
        late,
        why,
        None if through is None else to_datetime(through),
        record.job_id,
        to_datetime(record.decided_at),
    )
