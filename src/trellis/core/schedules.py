"""Schedules: what each slot leads to, and what a new declaration changes.

A schedule is stored as three parts: what the code declares (`declared`), what operators changed
(`changes`), and how jobs of its type are created (`template`). The plan in force is the declared
one with the changes on top, so a new declaration never undoes an operator's change.

`decide_slots` decides every due slot once, in order. The version of the schedule guards the
decision: of two processes that decide at the same time, one stores it. A job that a slot creates
has an id derived from the slot, and the ledger has one entry for each slot.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from trellis.core.durations import Instant, Micros, micros
from trellis.core.followups import ulid
from trellis.core.job import JobId, NewJob, Relations, fresh_context
from trellis.core.json_text import parse_json_text
from trellis.core.keys import derive_key, hash_key
from trellis.core.names import check_schedule
from trellis.core.policy import KeyPolicy, Policy, check_word
from trellis.core.timing import check_timing, iter_slots, latest_slot, next_slot
from trellis.errors import ConfigurationError, KeyUnresolved

Missed: TypeAlias = Literal["skip", "last", "all"]
Overlap: TypeAlias = Literal["allow", "skip", "queue"]
#: Fields of a plan, with their values.
Changes: TypeAlias = Mapping[str, str | int | bool]
_NOTHING: Final[Changes] = MappingProxyType({})
SlotOutcome: TypeAlias = Literal["created", "skipped", "missed"]

#: A slot that is decided later than this is late.
TOLERANCE: Final = micros("1m")
#: How many slots one decision covers.
PAGE: Final = 1000
#: How long the ledger keeps an entry.
KEEP_SLOTS: Final = micros("30d")
#: How many unfinished jobs a schedule remembers, to recognise an overlap.
_REMEMBERED: Final = 20
_DAY: Final = micros("1d")


_NO_WEIGHTS: Final[Mapping[str, int]] = MappingProxyType({})


class Plan(NamedTuple):
    """When a schedule is due and what it does then; operators can change all of it."""

    #: A cron expression, or `@every 15m`; see `timing`.
    when: str
    tz: str = "UTC"
    #: A job starts up to this long after its slot, by an amount that depends on the slot alone.
    jitter: Micros = 0
    missed: Missed = "last"
    overlap: Overlap = "allow"
    paused: bool = False
    #: JSON text.
    payload: str = "null"


class Template(NamedTuple):
    """How jobs of the type are created, as its declaration says."""

    type: str
    queue: str
    policy: Policy
    deadline: Micros | None = None
    schema_version: int = 1
    #: The template of the tenant whose share a job uses, and the turns of some tenants.
    fair: str | None = None
    weights: Mapping[str, int] = _NO_WEIGHTS


class Window(NamedTuple):
    """A time of maintenance: slots from `start` until before `end` are skipped."""

    start: Instant
    end: Instant


class Declared(NamedTuple):
    """A schedule as the code of a service declares it."""

    service: str
    name: str
    plan: Plan
    template: Template


class Schedule(NamedTuple):
    """A schedule as it is stored."""

    service: str
    name: str
    declared: Plan
    template: Template
    #: Fields of the plan that operators changed, with their values.
    changes: Changes = _NOTHING
    windows: tuple[Window, ...] = ()
    #: Its jobs that had not ended when it was last due, the oldest first.
    live: tuple[JobId, ...] = ()
    #: The first slot that is not decided yet; None: there is none, or it is retired.
    next_slot: Instant | None = None
    #: The code no longer declares it: it is kept, and not due.
    retired_at: Instant | None = None
    #: Grows with every change; 0 before it is stored.
    version: int = 0

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        changed: Any = self.changes
        return self.declared._replace(**changed)

    @property
    def title(self) -> str:
        """Service and name, as users write them."""
        return f"{self.service}/{self.name}"


class SlotDecision(NamedTuple):
    """What one slot leads to."""

    slot: Instant
    outcome: SlotOutcome
    #: It was decided more than a minute after its time.
    late: bool = False
    #: Why it creates no job: `overlap`, `paused`, `window`, or the reason of the admission.
    why: str | None = None
    #: The last of several slots that this one entry stands for.
    through: Instant | None = None


class Firing(NamedTuple):
    """The decision about the due slots of a schedule; it holds while the version is the same."""

    schedule: Schedule
    slots: tuple[SlotDecision, ...]
    #: The jobs of the slots that create one.
    jobs: tuple[tuple[Instant, NewJob], ...]
    next_slot: Instant | None
    #: The jobs of the schedule that have not ended.
    live: tuple[JobId, ...] = ()


# -- checks ------------------------------------------------------------------------------------


def check_plan(plan: Plan, template: Template) -> Plan:
    """Return the plan in its stored form; raise `ConfigurationError` or `AdmissionError`."""
    check_word("missed", plan.missed, Missed)
    check_word("overlap", plan.overlap, Overlap)
    if not 0 <= plan.jitter <= _DAY:
        raise ConfigurationError("jitter must be between 0 and one day. Write jitter='30s'.")
    if plan.overlap == "queue" and template.policy.key is not None:
        raise ConfigurationError(
            f"overlap='queue' lets the jobs of a schedule wait for each other, but jobs of "
            f"{template.type} already wait for their key. Use overlap='skip' or 'allow'."
        )
    payload = parse_json_text(plan.payload)
    if template.policy.key is not None:
        derive_key(template.policy.key.template, payload)
    return plan._replace(when=check_timing(plan.when, plan.tz))


def check_declared(declared: Declared) -> Declared:
    """Return a declaration with its plan in its stored form."""
    check_schedule(declared.name)
    return declared._replace(plan=check_plan(declared.plan, declared.template))


# -- declarations ------------------------------------------------------------------------------


def declare(stored: Schedule | None, declared: Declared, now: Instant) -> Schedule | None:
    """Return the schedule as this declaration leaves it; None if nothing changes.

    A new or returned schedule is first due after its declaration. Another time or zone is in force
    from now on; the operators' changes stay.
    """
    service, name, plan, template = declared
    if stored is None:
        fresh = Schedule(service, name, plan, template)
        return fresh._replace(next_slot=next_slot(plan.when, plan.tz, now))
    if (stored.declared, stored.template, stored.retired_at) == (plan, template, None):
        return None
    after = stored._replace(declared=plan, template=template, retired_at=None)
    return plan_slots(stored, after, now)


def retire(stored: Schedule, now: Instant) -> Schedule | None:
    """Return a schedule that the code no longer declares; None if it is retired already."""
    if stored.retired_at is not None:
        return None
    return stored._replace(retired_at=now, next_slot=None)


def plan_slots(before: Schedule, after: Schedule, now: Instant) -> Schedule:
    """Return the changed schedule with its next slot: the same one, unless its times changed."""
    if after.retired_at is not None:
        return after
    old, new = before.plan, after.plan
    is_same = (old.when, old.tz, before.retired_at) == (new.when, new.tz, None)
    # The clock may have been set back since the last decision. A change is a fresh start.
    is_ahead = before.next_slot is None or before.next_slot > (
        next_slot(new.when, new.tz, now) or now
    )
    if is_same and not is_ahead:
        return after
    return after._replace(next_slot=next_slot(new.when, new.tz, now))


def change_plan(stored: Schedule, changes: Changes, now: Instant) -> Schedule:
    """Return the schedule with further changes by an operator; raise for values not allowed.

    A value that is the declared one again is no change any more.
    """
    wanted: Any = {**stored.changes, **changes}
    plan = check_plan(stored.declared._replace(**wanted), stored.template)
    declared = stored.declared._asdict()
    kept = {name: value for name, value in plan._asdict().items() if value != declared[name]}
    return plan_slots(stored, stored._replace(changes=kept), now)


# -- due slots ---------------------------------------------------------------------------------


def decide_slots(schedule: Schedule, now: Instant, live: Sequence[JobId]) -> Firing:
    """Decide the due slots of a schedule, at most `PAGE`; `live` are its unfinished jobs."""
    plan, first = schedule.plan, schedule.next_slot
    if first is None or first > now:
        return Firing(schedule, (), (), first, tuple(live))
    due = [first]
    following: Instant | None = None
    for slot in islice(iter_slots(plan.when, plan.tz, first), PAGE):
        if slot > now or len(due) == PAGE:
            following = slot
            break
        due.append(slot)
    decided: list[SlotDecision] = []
    if following is not None and following <= now and plan.missed != "all":
        # The clock jumped, or no worker ran for long: one entry stands for all but the latest slot.
        newest = latest_slot(plan.when, plan.tz, now) or following
        until = latest_slot(plan.when, plan.tz, newest - 1) or first
        passed = SlotDecision(first, "missed", late=True, through=until)
        decided.append(passed._replace(outcome="skipped", why="paused") if plan.paused else passed)
        due, following = [newest], next_slot(plan.when, plan.tz, newest)
    is_last_page = following is None or following > now
    for slot in due:
        is_newest = is_last_page and slot == due[-1]
        busy = bool(live) or any(each.outcome == "created" for each in decided)
        decided.append(_decide(schedule, slot, now, is_newest=is_newest, is_busy=busy))
    try:
        jobs = [
            (slot, _slot_job(schedule, slot))
            for slot, outcome, *_ in decided
            if outcome == "created"
        ]
    except KeyUnresolved:
        # The code has another key since, and an operator's payload does not have its fields.
        jobs = []
        decided = [_unresolved(each) for each in decided]
    return Firing(schedule, tuple(decided), tuple(jobs), following, tuple(live))


def _unresolved(decision: SlotDecision) -> SlotDecision:
    if decision.outcome != "created":
        return decision
    return decision._replace(outcome="skipped", why="key_unresolved")


def _decide(
    schedule: Schedule, slot: Instant, now: Instant, *, is_newest: bool, is_busy: bool
) -> SlotDecision:
    plan, late = schedule.plan, now - slot > TOLERANCE
    if plan.paused:
        return SlotDecision(slot, "skipped", late, "paused")
    if any(window.start <= slot < window.end for window in schedule.windows):
        return SlotDecision(slot, "skipped", late, "window")
    if late and (plan.missed == "skip" or (plan.missed == "last" and not is_newest)):
        return SlotDecision(slot, "missed", late)
    if plan.overlap == "skip" and is_busy:
        return SlotDecision(slot, "skipped", late, "overlap")
    return SlotDecision(slot, "created", late)


def remember(schedule: Schedule, live: Sequence[JobId], created: Sequence[JobId]) -> Schedule:
    """Return the schedule with its jobs that may overlap with the next slot."""
    return schedule._replace(live=(*live, *created)[-_REMEMBERED:])


# -- jobs --------------------------------------------------------------------------------------


def _slot_job(schedule: Schedule, slot: Instant) -> NewJob:
    jitter = schedule.plan.jitter
    digest = _digest(schedule, slot)
    new = job_of(schedule, JobId(ulid(slot, digest)), slot, digest)
    return new._replace(run_at=slot + digest % (jitter + 1)) if jitter else new


def job_of(schedule: Schedule, job_id: JobId, slot: Instant | None, randomness: int) -> NewJob:
    """Return the request for a job of a schedule, for a slot or outside of them."""
    plan, template = schedule.plan, schedule.template
    fair = template.fair
    tenant = None if fair is None else derive_key(fair, json.loads(plan.payload))
    new = NewJob(
        id=job_id,
        service=schedule.service,
        type=template.type,
        queue=template.queue,
        payload=plan.payload,
        policy=template.policy,
        context=fresh_context(job_id, randomness & 2**128 - 1, randomness >> 128 & 2**64 - 1),
        deadline_in=template.deadline,
        schema_version=template.schema_version,
        relations=Relations(
            schedule=schedule.name,
            slot=slot,
            tenant=tenant,
            weight=None if tenant is None else template.weights.get(tenant),
        ),
    )
    policy = template.policy
    if policy.key is None and plan.overlap == "queue":
        # One at a time, in order: the next job waits until the one before it has ended.
        policy = replace(policy, key=_IN_TURN)
        key = f"schedule/{schedule.name}"
    elif policy.key is not None:
        key = derive_key(policy.key.template, json.loads(plan.payload))
    else:
        return new
    return new._replace(policy=policy, key=key, key_hash=hash_key(new.service, new.type, key))


_IN_TURN: Final = KeyPolicy("schedule", active=1, queued=None, when_full="wait", hold="job")


def _digest(schedule: Schedule, slot: Instant) -> int:
    text = f"{schedule.service}\0{schedule.name}\0{slot}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest())
