"""Schedules: what each slot leads to, and what a new declaration changes.

A schedule is stored as three parts: what the code declares (`declared`), what operators changed
(`changes`), and how jobs of its type are created (`template`). The plan in force is the declared
one with the changes on top, so a new declaration never undoes an operator's change.

`decide_slots` decides every due slot once, in order. The version of the schedule guards the
decision: of two processes that decide at the same time, one stores it. A job that a slot creates
has an id derived from the slot, and the ledger has one entry for each slot. An edit that changes
the times of a schedule, or retires it, decides the slots that are due in the same step (`edit`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from trellis.core.admission import check_new_job
from trellis.core.durations import Instant, Micros, micros
from trellis.core.followups import ulid
from trellis.core.job import JobId, NewJob, Relations, fresh_context
from trellis.core.json_text import parse_json_text
from trellis.core.keys import derive_key
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
    #: Its latest jobs that may not have ended, the oldest first.
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
    #: Why it creates no job: `overlap`, `paused`, `window`, `edited`, `retired`, or the reason of
    #: the admission.
    why: str | None = None
    #: The last of several slots that this one entry stands for.
    through: Instant | None = None


class Step(NamedTuple):
    """A decision about a schedule: its due slots, an edit, or both; stored whole or not at all.

    It holds while the version of the schedule is the same, and before `until`.
    """

    #: As the step leaves it, except for the jobs that it creates; the version is that before.
    schedule: Schedule
    slots: tuple[SlotDecision, ...] = ()
    #: The jobs of the slots that create one.
    jobs: tuple[tuple[Instant, NewJob], ...] = ()
    #: The first slot that an edit leaves undecided. Once it is due, the edit is decided again.
    until: Instant | None = None
    #: False: more slots are due than one step decides, and the edit follows them.
    is_whole: bool = True


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
    parse_json_text(plan.payload)
    job_of(Schedule("service", "name", plan, template), JobId(ulid(0, 0)), None, 0)
    return plan._replace(when=check_timing(plan.when, plan.tz))


def check_declared(declared: Declared) -> Declared:
    """Return a declaration with its plan in its stored form."""
    check_schedule(declared.name)
    return declared._replace(plan=check_plan(declared.plan, declared.template))


# -- declarations and edits --------------------------------------------------------------------


def declare(declared: Declared, now: Instant) -> Schedule:
    """Return a new schedule; it is first due after its declaration."""
    service, name, plan, template = declared
    return Schedule(service, name, plan, template, next_slot=next_slot(plan.when, plan.tz, now))


def declare_again(stored: Schedule, declared: Declared) -> Schedule | None:
    """Return a stored schedule as its code declares it now; None if nothing changes.

    The operators' changes stay.
    """
    _, _, plan, template = declared
    after = stored._replace(declared=plan, template=template, retired_at=None)
    return None if after == stored else after


def retire(stored: Schedule, now: Instant) -> Schedule | None:
    """Return a schedule that the code no longer declares; None if it is retired already."""
    return stored._replace(retired_at=now) if stored.retired_at is None else None


def change_plan(stored: Schedule, changes: Changes) -> Schedule:
    """Return the schedule with further changes by an operator; raise for values not allowed.

    A value that is the declared one again is no change any more. Pausing and resuming need no check
    of the rest, so they work on a host that does not know the time zone.
    """
    wanted: Any = {**stored.changes, **changes}
    plan = stored.declared._replace(**wanted)
    if changes.keys() != {"paused"}:
        plan = check_plan(plan, stored.template)
    declared = stored.declared._asdict()
    kept = {name: value for name, value in plan._asdict().items() if value != declared[name]}
    return stored._replace(changes=kept)


def edit(before: Schedule, after: Schedule, now: Instant, live: Sequence[JobId]) -> Step:
    """Return the step from one form of a schedule to another; `live` are its unfinished jobs.

    While its times are the same, a due slot stays due, and the new plan decides it. When the times
    change, the slots that are due are decided by the plan before the change. When the schedule is
    retired or gets another type, its due slots are missed.
    """
    after = after._replace(version=before.version)
    if _times(before) == _times(after):
        return Step(after._replace(next_slot=_coming(before, after, now)))
    decided = _leave_times(before, after, now, live)
    following = decided.schedule.next_slot
    if following is not None and following <= now:
        return decided._replace(is_whole=False)
    plan = after.plan
    coming = None if after.retired_at is not None else next_slot(plan.when, plan.tz, now)
    edited = after._replace(next_slot=coming, live=decided.schedule.live)
    return decided._replace(schedule=edited, until=following)


def _times(schedule: Schedule) -> tuple[str, str, bool]:
    """Return on what the slots of a schedule depend."""
    return schedule.plan.when, schedule.plan.tz, schedule.retired_at is None


def _coming(before: Schedule, after: Schedule, now: Instant) -> Instant | None:
    """Return the next slot after an edit that leaves the times as they are."""
    if after.retired_at is not None:
        return None
    try:
        first = next_slot(after.plan.when, after.plan.tz, now)
    except ConfigurationError:  # this host does not know the time zone
        return before.next_slot
    # The clock may have been set back since the last decision. An edit is a fresh start.
    is_ahead = before.next_slot is None or before.next_slot > (first or now)
    return first if is_ahead else before.next_slot


def _leave_times(before: Schedule, after: Schedule, now: Instant, live: Sequence[JobId]) -> Step:
    """Decide the due slots of a schedule whose times are about to change."""
    first, plan = before.next_slot, before.plan
    if first is None or first > now:
        return Step(before)
    why = "edited" if after.retired_at is None else "retired"
    entry = SlotDecision(first, "missed", now - first > TOLERANCE, why)
    try:
        if after.retired_at is None and before.template.type == after.template.type:
            return decide_slots(before, now, live)
        # Perhaps no worker knows the type any more.
        latest = latest_slot(plan.when, plan.tz, now)
        following = next_slot(plan.when, plan.tz, now)
    except ConfigurationError:  # this host does not know the time zone before the change
        latest = following = None
    through = latest if latest is not None and latest > first else None
    return Step(before._replace(next_slot=following), (entry._replace(through=through),))


# -- due slots ---------------------------------------------------------------------------------


def decide_slots(schedule: Schedule, now: Instant, live: Sequence[JobId]) -> Step:
    """Decide the due slots of a schedule, at most `PAGE`; `live` are its unfinished jobs."""
    plan, first = schedule.plan, schedule.next_slot
    if first is None or first > now:
        return Step(schedule)
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
    except (KeyUnresolved, ConfigurationError) as error:
        # The code has another key or tenant since, which an operator's payload does not give.
        jobs = []
        decided = [_refused(each, error.code) for each in decided]
    after = schedule._replace(next_slot=following, live=tuple(live))
    return Step(after, tuple(decided), tuple(jobs))


def _refused(decision: SlotDecision, why: str) -> SlotDecision:
    if decision.outcome != "created":
        return decision
    return decision._replace(outcome="skipped", why=why)


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


def remember(schedule: Schedule, created: Sequence[JobId]) -> Schedule:
    """Return the schedule with its jobs that may overlap with the next slot."""
    return schedule._replace(live=(*schedule.live, *created)[-_REMEMBERED:])


# -- jobs --------------------------------------------------------------------------------------


def _slot_job(schedule: Schedule, slot: Instant) -> NewJob:
    jitter = schedule.plan.jitter
    digest = _digest(schedule, slot)
    new = job_of(schedule, JobId(ulid(slot, digest)), slot, digest)
    return new._replace(run_at=slot + digest % (jitter + 1)) if jitter else new


def job_of(schedule: Schedule, job_id: JobId, slot: Instant | None, randomness: int) -> NewJob:
    """Return the request for a job of a schedule, for a slot or outside of them.

    Raise `KeyUnresolved` or `ConfigurationError` if the payload gives no key or no tenant.
    """
    plan, template = schedule.plan, schedule.template
    fair = template.fair
    tenant = None if fair is None else derive_key(fair, json.loads(plan.payload), "tenant")
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
    if policy.key is not None:
        new = new._replace(key=derive_key(policy.key.template, json.loads(plan.payload)))
    elif plan.overlap == "queue":
        # One at a time, in order: the next job waits until the one before it has ended.
        in_turn = replace(policy, key=_IN_TURN)
        new = new._replace(policy=in_turn, key=f"schedule/{schedule.name}")
    return check_new_job(new)


_IN_TURN: Final = KeyPolicy("schedule", active=1, queued=None, when_full="wait", hold="job")


def _digest(schedule: Schedule, slot: Instant) -> int:
    text = f"{schedule.service}\0{schedule.name}\0{slot}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest())
