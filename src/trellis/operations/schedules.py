"""Schedules for operators: read them, change them, run them; `jobs.schedules` of `connect`.

Every change is one audit entry with what was before and after. It holds until it is reset, also
when the code declares something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack

from trellis import schedules
from trellis.client.results import rejection
from trellis.core import schedules as rules
from trellis.core.durations import SECOND, Duration, Instant, micros, to_datetime
from trellis.core.json_text import dump_json
from trellis.core.schedules import Changes, Missed, Overlap, Schedule, Window
from trellis.core.timing import write_interval
from trellis.declaration import checks
from trellis.declaration.job_type import JobType
from trellis.declaration.options import check_options
from trellis.engines.audit import Action, By, Change
from trellis.engines.port import Engine
from trellis.engines.values import Accepted, Coalesced, Rejected, Replaced
from trellis.errors import (
    AmbiguousId,
    ConfigurationError,
    KeyUnresolved,
    PayloadInvalid,
    ScheduleNotFound,
)
from trellis.insight.schedule_views import (
    NEXT_RUNS,
    ScheduleView,
    SlotView,
    plan_values,
    schedule_view,
    slot_view,
)
from trellis.operations.creation import Creation
from trellis.portal import synced

#: How long a window is listed after its end.
_KEEP_WINDOWS: Final = micros("30d")


class ScheduleChanges(TypedDict, total=False):
    """What an operator may change of a schedule; what is not given stays."""

    #: A cron expression, or `@every 15m`.
    cron: str
    #: The interval between two slots.
    every: Duration
    tz: str
    #: Plain JSON data.
    payload: object
    jitter: Duration
    missed: Missed
    overlap: Overlap


class Schedules:
    """The schedules of an engine; a name is written `nightly` or `shop/nightly`."""

    def __init__(self, engine: Callable[[], Engine], actor: str) -> None:
        self._engine = engine
        self._actor = actor

    # -- reading -------------------------------------------------------------------------------

    async def find(
        self, *, service: str | None = None, next_runs: int = NEXT_RUNS
    ) -> list[ScheduleView]:
        """Return the schedules, retired ones too, by service and name."""
        engine = self._engine()
        found = await engine.schedules([] if service is None else [service])
        now = await engine.now()
        return [schedule_view(each, now, next_runs) for each in found]

    async def get(self, name: str) -> ScheduleView:
        """Return one schedule; raise `ScheduleNotFound`."""
        return await self._view(await self._resolve(name))

    async def slots(self, name: str, *, limit: int = 50) -> list[SlotView]:
        """Return what the slots of a schedule led to, the latest first."""
        found = await self._resolve(name)
        records = await self._engine().slots(found.service, found.name, limit=limit)
        return [slot_view(each) for each in records]

    # -- changing ------------------------------------------------------------------------------

    async def change(
        self,
        name: str,
        *,
        reason: str = "",
        types: Iterable[JobType] = (),
        **options: Unpack[ScheduleChanges],
    ) -> ScheduleView:
        """Change when a schedule is due, its payload or its policies.

        A payload is checked by the type, if it is among `types`; otherwise its jobs check it.
        """
        check_options(options, ScheduleChanges, "A schedule has")
        changes = _read_changes(options)
        if not changes:
            raise ConfigurationError(
                "Nothing to change was given, so nothing was stored. Give cron=, every=, tz=, "
                "payload=, jitter=, missed= or overlap=."
            )
        declared = {(each.service, each.name): each for each in types}

        def decide(schedule: Schedule, _: Instant) -> Schedule:
            job_type = declared.get((schedule.service, schedule.template.type))
            if job_type is not None and "payload" in changes:
                _check_payload(job_type, str(changes["payload"]))
            try:
                return rules.change_plan(schedule, changes)
            except KeyUnresolved as error:
                raise KeyUnresolved(f"{schedule.title}: {error} Nothing was stored.") from None

        return await self._change(name, "schedule.set", decide, reason)

    async def pause(self, name: str, *, reason: str = "") -> ScheduleView:
        """Skip the slots of a schedule until it is resumed."""
        return await self._change(
            name,
            "schedule.pause",
            lambda each, _: rules.change_plan(each, {"paused": True}),
            reason,
        )

    async def resume(self, name: str, *, reason: str = "") -> ScheduleView:
        """Let the coming slots of a schedule create jobs again."""
        return await self._change(
            name,
            "schedule.resume",
            lambda each, _: rules.change_plan(each, {"paused": False}),
            reason,
        )

    async def reset(self, name: str, *, reason: str = "") -> ScheduleView:
        """Undo what operators changed, except for windows: the code decides again."""
        return await self._change(
            name,
            "schedule.reset",
            lambda each, _: each._replace(changes={}),
            reason,
        )

    async def add_window(
        self, name: str, start: datetime, end: datetime, *, reason: str = ""
    ) -> ScheduleView:
        """Skip the slots from `start` until before `end`."""
        window = Window(checks.instant("start", start), checks.instant("end", end))
        if window.end <= window.start:
            raise ConfigurationError(
                "The window ends before it starts, so nothing was stored. Give the start first."
            )

        def decide(schedule: Schedule, now: Instant) -> Schedule:
            kept = {each for each in schedule.windows if each.end > now - _KEEP_WINDOWS}
            return schedule._replace(windows=tuple(sorted({*kept, window})))

        return await self._change(name, "schedule.window", decide, reason)

    async def remove_window(self, name: str, start: datetime, *, reason: str = "") -> ScheduleView:
        """Remove the windows that begin in the second of this moment, as they are shown."""
        wanted = checks.instant("start", start) // SECOND

        def decide(schedule: Schedule, _: Instant) -> Schedule:
            kept = tuple(each for each in schedule.windows if each.start // SECOND != wanted)
            if kept == schedule.windows:
                raise ConfigurationError(
                    f"{schedule.title} has no window that begins at {start.isoformat()}. Nothing "
                    f"was stored. See them with: trellis schedules show {schedule.title}"
                )
            return schedule._replace(windows=kept)

        return await self._change(name, "schedule.window", decide, reason)

    async def run(self, name: str, *, reason: str = "") -> Creation:
        """Create a job of a schedule now, outside of its slots; raise a typed `AdmissionError`."""
        found = await self._resolve(name)
        by = By(self._actor, reason)
        new, answer = await schedules.run_schedule(self._engine(), found.service, found.name, by)
        match answer:
            case Accepted(job_id) | Replaced(job_id):
                return Creation(job_id, is_new=True)
            case Coalesced(existing):
                return Creation(existing, is_new=False)
            case Rejected(reason_word, existing_id):
                raise rejection(new, reason_word, existing_id)

    async def _change(
        self,
        name: str,
        action: Action,
        decide: Callable[[Schedule, Instant], Schedule],
        reason: str,
    ) -> ScheduleView:
        found = await self._resolve(name)

        def with_change(schedule: Schedule, now: Instant) -> tuple[Schedule, Change]:
            changed = decide(schedule, now)
            before, after = differences(schedule, changed)
            return changed, Change(action, schedule.title, before, after)

        by = By(self._actor, reason)
        stored = await schedules.change_schedule(
            self._engine(), found.service, found.name, with_change, by
        )
        return await self._view(stored)

    async def _view(self, schedule: Schedule) -> ScheduleView:
        return schedule_view(schedule, await self._engine().now())

    async def _resolve(self, written: str) -> Schedule:
        service, _, name = written.rpartition("/")
        stored = await self._engine().schedules([service] if service else [])
        found = [each for each in stored if each.name == name]
        if not found:
            raise ScheduleNotFound(
                f"There is no schedule {written!r} here. See them with: trellis schedules"
            )
        if len(found) > 1:
            names = tuple(each.title for each in found)
            raise AmbiguousId(
                f"Several services have a schedule {name!r}: {', '.join(names)}. Write one of "
                "them.",
                candidates=names,
            )
        return found[0]

    find_sync = synced(find)
    get_sync = synced(get)
    slots_sync = synced(slots)
    change_sync = synced(change)
    pause_sync = synced(pause)
    resume_sync = synced(resume)
    reset_sync = synced(reset)
    add_window_sync = synced(add_window)
    remove_window_sync = synced(remove_window)
    run_sync = synced(run)


def _read_changes(options: ScheduleChanges) -> Changes:
    """Return the changes as a plan has them."""
    changes: dict[str, str | int | bool] = {}
    if "cron" in options and "every" in options:
        raise ConfigurationError("Give cron= or every=, not both: each says when it is due.")
    if "cron" in options:
        changes["when"] = checks.text("cron", options["cron"], "0 3 * * *")
    if "every" in options:
        checks.positive_duration("every", options["every"])
        changes["when"] = write_interval(options["every"])
    if "tz" in options:
        changes["tz"] = checks.text("tz", options["tz"], "Europe/Vienna")
    if "payload" in options:
        changes["payload"] = dump_json(options["payload"])
    if "jitter" in options:
        changes["jitter"] = checks.duration("jitter", options["jitter"])
    if "missed" in options:
        changes["missed"] = checks.one_of(Missed, "missed", options["missed"])
    if "overlap" in options:
        changes["overlap"] = checks.one_of(Overlap, "overlap", options["overlap"])
    return changes


def _check_payload(job_type: JobType, payload: str) -> None:
    try:
        job_type.payload.decode(payload)
    except PayloadInvalid as error:
        name = f"{job_type.service}/{job_type.name}"
        raise type(error)(f"{name}: {error} Nothing was stored.") from error.__cause__


def differences(before: Schedule, after: Schedule) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values that a change replaces and brings, as they are shown."""
    old, new = (
        {**plan_values(each.plan, each.template), "windows": list(map(_interval, each.windows))}
        for each in (before, after)
    )
    changed = [name for name, value in new.items() if old[name] != value]
    if before.plan.payload != after.plan.payload and "payload" not in changed:
        changed.append("payload")  # only a masked part differs
    return {name: old[name] for name in changed}, {name: new[name] for name in changed}


def _interval(window: Window) -> str:
    return "/".join(to_datetime(each).isoformat() for each in window)
