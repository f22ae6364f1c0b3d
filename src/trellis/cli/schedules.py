"""`trellis schedules`: list schedules, see what their slots led to, change and run them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import rich_click as click

from trellis.cli.app import CommandGroup, operate
from trellis.cli.format import local_time
from trellis.cli.options import (
    debug_option,
    form_options,
    json_option,
    reason_option,
    url_only_option,
    url_option,
)
from trellis.cli.output import (
    Cell,
    Column,
    Form,
    complain,
    safe_json,
    visible,
    write_each,
    write_json,
    write_line,
    write_table,
)

if TYPE_CHECKING:
    from trellis.declaration.job_type import JobType
    from trellis.insight.schedule_views import ScheduleView, SlotView
    from trellis.operations.operator import Operator
    from trellis.operations.schedules import ScheduleChanges

    Change = Callable[[Operator], Awaitable[ScheduleView]]

_NAME = click.argument("name", metavar="NAME")
_LABEL_WIDTH = 12
#: A cron expression and its zone on one line leave room for two times in 80 columns.
_TIMES_WIDTH = 36


@click.command("schedules", cls=CommandGroup, default="list")
def schedules() -> None:
    """List schedules, see what their slots led to, change and run them."""


# -- reading -------------------------------------------------------------------------------------


@schedules.command("list")
@click.option("--service", metavar="NAME", help="Only those of this service.")
@click.option(
    "--next", "runs", metavar="N", default=5, type=click.IntRange(1, 100), help="N next runs (5)."
)
@form_options
@url_option
@debug_option
def list_command(*, service: str | None, runs: int, form: Form, url: str | None) -> None:
    """List all schedules with their next runs, in their time zone and in yours."""
    from trellis.insight.views import as_json

    found = operate(url, lambda jobs: jobs.schedules.find(service=service, next_runs=runs))
    write_each(form, found, document=as_json, name=_title, table=_table)
    if form is Form.TABLE and not found:
        complain("There is no schedule here. A worker stores those of its services when it starts.")


def _title(schedule: ScheduleView) -> str:
    return f"{schedule.service}/{schedule.name}"


def _table(found: list[ScheduleView]) -> None:
    columns = (Column("SCHEDULE"), Column("NEXT IN ITS ZONE"), Column("NEXT HERE"))
    write_table(columns, (row for each in found for row in _rows(each)))


def _rows(schedule: ScheduleView) -> list[tuple[str | Cell, ...]]:
    """Return what is known about a schedule on the left, and its next runs beside it."""
    whole = f"{schedule.when}, {schedule.tz}"
    times = [whole] if len(whole) <= _TIMES_WIDTH else [schedule.when, schedule.tz]
    about = [
        Cell(_title(schedule), "bold"),
        *(Cell(f"  {text}") for text in times),
        *(Cell(f"  {note}", "yellow") for note in _notes(schedule)),
    ]
    runs = [(_in_zone(run, schedule.tz), local_time(run)) for run in schedule.next_runs]
    runs = runs or [("-", "-")]
    height = max(len(about), len(runs))
    about += [Cell("")] * (height - len(about))
    runs += [("", "")] * (height - len(runs))
    return [(left, *right) for left, right in zip(about, runs, strict=True)]


def _in_zone(moment: datetime, tz: str) -> str:
    from trellis.core.timing import find_zone

    return moment.astimezone(find_zone(tz)).strftime("%Y-%m-%d %H:%M:%S")


def _notes(schedule: ScheduleView) -> list[str]:
    notes: list[str] = [] if schedule.state == "active" else [schedule.state]
    notes += ["changed"] if set(schedule.declared) - {"paused"} else []
    if schedule.behind_since is not None and schedule.state == "active":
        notes.append(f"behind since {local_time(schedule.behind_since)}")
    if schedule.ahead_until is not None:
        notes.append("the clock was set back")
    if not schedule.is_zone_known:
        notes.append("its time zone is not known here")
    return notes


@schedules.command("show")
@_NAME
@json_option
@url_option
@debug_option
def show_command(name: str, *, as_json: bool, url: str | None) -> None:
    """Show a schedule: its next five runs in both time zones, and what operators changed."""
    from trellis.insight.views import as_json as document

    async def load(jobs: Operator) -> tuple[ScheduleView, list[SlotView]]:
        return await jobs.schedules.get(name), await jobs.schedules.slots(name, limit=5)

    schedule, slots = operate(url, load)
    if as_json:
        write_json({**document(schedule), "slots": document(slots)})
        return
    for label, text in _details(schedule):
        write_line(f"{label:<{_LABEL_WIDTH}} {visible(text)}".rstrip())
    if slots:
        write_line("")
        _slot_table(slots)


def _details(schedule: ScheduleView) -> list[tuple[str, str]]:
    notes = _notes(schedule)
    lines = [
        ("schedule", _title(schedule) + (f" ({', '.join(notes)})" if notes else "")),
        ("type", f"{schedule.service}/{schedule.type}, queue {schedule.queue}"),
        ("when", f"{schedule.when} in {schedule.tz}"),
        ("missed", schedule.missed),
        ("overlap", schedule.overlap),
        *([("jitter", f"{schedule.jitter:g} s")] if schedule.jitter else []),
        ("payload", safe_json(schedule.payload)),
    ]
    lines += [
        ("window", f"{local_time(each.start)} to {local_time(each.end)} here")
        for each in schedule.windows
    ]
    lines += [
        ("declared", f"{field}: {safe_json(value)}") for field, value in schedule.declared.items()
    ]
    lines += [
        ("next", f"{_in_zone(run, schedule.tz)} {schedule.tz}, {local_time(run)} here")
        for run in schedule.next_runs
    ]
    return lines


@schedules.command("slots")
@_NAME
@click.option("--limit", metavar="N", default=20, type=click.IntRange(1), help="At most N (20).")
@form_options
@url_option
@debug_option
def slots_command(name: str, *, limit: int, form: Form, url: str | None) -> None:
    """List what the slots of a schedule led to, the latest first."""
    from trellis.insight.views import as_json

    found = operate(url, lambda jobs: jobs.schedules.slots(name, limit=limit))
    write_each(
        form, found, document=as_json, name=lambda each: each.job_id or "-", table=_slot_table
    )
    if form is Form.TABLE and not found:
        complain(f"No slot of {name} was decided in the last 30 days.")


def _slot_table(found: list[SlotView]) -> None:
    columns = (Column("SLOT"), Column("OUTCOME"), Column("WHY", shrinks=True), Column("JOB"))
    write_table(
        columns,
        (
            (
                local_time(each.slot),
                f"{each.outcome}{', late' if each.late and each.outcome == 'created' else ''}",
                _why(each),
                each.job_id or "-",
            )
            for each in found
        ),
    )


def _why(slot: SlotView) -> str:
    until = "" if slot.through is None else f"and all slots until {local_time(slot.through)}"
    return " ".join(part for part in (slot.why, until) if part) or "-"


# -- changing ------------------------------------------------------------------------------------


def _changing(command: Callable[..., None]) -> Callable[..., None]:
    """Add what the commands that change a schedule take."""
    for add in (debug_option, url_option, json_option, reason_option, _NAME):
        command = add(command)
    return command


@schedules.command("pause")
@_changing
def pause_command(name: str, *, reason: str, as_json: bool, url: str | None) -> None:
    """Skip the slots of a schedule until it is resumed."""
    _change(url, lambda jobs: jobs.schedules.pause(name, reason=reason), as_json=as_json)


@schedules.command("resume")
@_changing
def resume_command(name: str, *, reason: str, as_json: bool, url: str | None) -> None:
    """Let the coming slots create jobs again."""
    _change(url, lambda jobs: jobs.schedules.resume(name, reason=reason), as_json=as_json)


@schedules.command("reset")
@_changing
def reset_command(name: str, *, reason: str, as_json: bool, url: str | None) -> None:
    """Undo what operators changed: the schedule is as the code declares it; windows stay."""
    _change(url, lambda jobs: jobs.schedules.reset(name, reason=reason), as_json=as_json)


@schedules.command("set")
@_NAME
@click.option("--cron", metavar="EXPRESSION", help="When: '0 3 * * *', or '@every 15m'.")
@click.option("--every", metavar="DURATION", help="The interval between two slots: 15m.")
@click.option("--tz", metavar="ZONE", help="The time zone: Europe/Vienna.")
@click.option("--payload", metavar="JSON", help="The payload of its jobs; or @file, or -.")
@click.option("--jitter", metavar="DURATION", help="Start up to this long after the slot.")
@click.option("--missed", type=click.Choice(["skip", "last", "all"]), help="Of missed slots.")
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip", "queue"]),
    help="While an earlier job has not ended.",
)
@click.option("--app", metavar="MODULE:SERVICE", multiple=True, help="Checks the payload.")
@reason_option
@json_option
@url_only_option
@debug_option
def set_command(
    name: str,
    *,
    app: Sequence[str],
    reason: str,
    as_json: bool,
    url: str | None,
    **given: Any,  # noqa: ANN401 - the options of `ScheduleChanges`
) -> None:
    """Change when a schedule is due, its payload or its policies, until `reset`.

    A payload is checked by the type if the app is known: --app, TRELLIS_APP or trellis.toml.
    """
    from trellis.cli.app import url_of_app
    from trellis.cli.enqueue import payload_text
    from trellis.core.json_text import parse_json_text

    changes: ScheduleChanges = {}
    changes.update({field: value for field, value in given.items() if value is not None})  # type: ignore[typeddict-item]
    types: list[JobType] = []
    if given["payload"] is not None:
        changes["payload"] = parse_json_text(payload_text(given["payload"]))
        types = _declared_types(app)
    if app and url is None:
        url = url_of_app(tuple(app))
    _change(
        url,
        lambda jobs: jobs.schedules.change(name, reason=reason, types=types, **changes),
        as_json=as_json,
    )


def _declared_types(app: Sequence[str]) -> list[JobType]:
    """Return the types of the app; none if no app is known."""
    from trellis.cli.loading import load_services
    from trellis.config import environment
    from trellis.declaration.imports import prepare_project

    prepare_project()
    if not app and not environment().get("TRELLIS_APP"):
        complain("No app is given, so the payload is not checked before a job runs.")
        return []
    return [each for one in load_services(app or None) for each in one.job_types]


@schedules.command("run")
@_changing
def run_command(name: str, *, reason: str, as_json: bool, url: str | None) -> None:
    """Create a job of a schedule now, outside of its slots, and write its id."""
    created = operate(url, lambda jobs: jobs.schedules.run(name, reason=reason))
    if as_json:
        write_json({"job_id": created.job_id, "is_new": created.is_new})
    else:
        write_line(created.job_id)
    if not created.is_new:
        complain(f"No new job was created: job {created.job_id} already does this work.")


@schedules.group("window", cls=CommandGroup)
def window() -> None:
    """Add or remove times of maintenance, in which slots are skipped."""


@window.command("add")
@_NAME
@click.argument("start", metavar="FROM")
@click.argument("end", metavar="TO")
@reason_option
@json_option
@url_option
@debug_option
def window_add_command(
    name: str, *, start: str, end: str, reason: str, as_json: bool, url: str | None
) -> None:
    """Skip the slots from FROM until before TO: now, 2h, 'tomorrow 09:00', 2030-01-31T09:00."""
    begins, ends = _moment(start), _moment(end)
    _change(
        url,
        lambda jobs: jobs.schedules.add_window(name, begins, ends, reason=reason),
        as_json=as_json,
    )


@window.command("remove")
@_NAME
@click.argument("start", metavar="FROM")
@reason_option
@json_option
@url_option
@debug_option
def window_remove_command(
    name: str, *, start: str, reason: str, as_json: bool, url: str | None
) -> None:
    """Remove the window that begins at FROM, as `schedules show` writes it."""
    begins = _moment(start)
    _change(
        url, lambda jobs: jobs.schedules.remove_window(name, begins, reason=reason), as_json=as_json
    )


def _moment(text: str) -> datetime:
    from trellis.insight.time_expressions import parse_moment

    return parse_moment(text, datetime.now(UTC), "future")


def _change(url: str | None, change: Change, *, as_json: bool) -> None:
    from trellis.insight.views import as_json as document

    schedule = operate(url, change)
    if as_json:
        write_json(document(schedule))
        return
    runs = schedule.next_runs
    coming = f"its next run is at {local_time(runs[0])} here" if runs else "it has no next run"
    complain(f"Schedule {_title(schedule)} is {schedule.state}: {schedule.when}; {coming}.")
