"""`trellis audit`: what operators changed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from trellis.cli.app import NOT_FOUND, CommandFailed, CommandGroup, operate
from trellis.cli.format import local_time
from trellis.cli.options import debug_option, form_options, json_option, url_option
from trellis.cli.output import (
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
    from trellis.insight.audit import AuditView
    from trellis.operations.audit import AuditFilters
    from trellis.operations.operator import Operator

_PAGE: Final = 500
_FILTERS: Final = (
    ("--actor", "NAME", "By this operator"),
    ("--action", "ACTION", "What was done: job.cancel; or its first word: queue"),
    ("--target", "TARGET", "To what: the id of a job or worker, service/queue"),
    ("--since", "WHEN", "Changed since: 1h, yesterday, 2030-01-31"),
    ("--until", "WHEN", "Changed before"),
)


@click.command("audit", cls=CommandGroup, default="list")
def audit() -> None:
    """List what operators changed: who, when, what, and why.

    Every change that is made with a command or with `trellis.connect()` has one entry. Entries are
    kept for a year, or as long as the setting `keep_audit` of the workers says.
    """


def _filter_options(command: Any) -> Any:  # noqa: ANN401 - click's shape
    for name, metavar, text in reversed(_FILTERS):
        command = click.option(name, metavar=metavar, help=f"{text}.")(command)
    return command


@audit.command("list")
@_filter_options
@click.option("--before", metavar="NUMBER", type=click.IntRange(1), help="Older than this entry.")
@click.option(
    "--limit", metavar="N", default=50, type=click.IntRange(0), help="At most N; 0 lists all (50)."
)
@form_options
@url_option
@debug_option
def list_command(
    *,
    before: int | None,
    limit: int,
    form: Form,
    url: str | None,
    **filters: Any,  # noqa: ANN401 - click's options
) -> None:
    """List changes by operators, the latest first."""
    from trellis.insight.views import as_json

    found, is_cut = operate(url, lambda jobs: _load(jobs, filters, before, limit))  # type: ignore[arg-type]
    write_each(
        form, found, document=as_json, name=lambda entry: str(entry.number), table=_write_table
    )
    if form is Form.TABLE and not found:
        complain("No operator has changed anything that matches.")
    if is_cut:
        complain(f"There are older ones; see them with --before {found[-1].number}.")


async def _load(
    jobs: Operator, filters: AuditFilters, before: int | None, limit: int
) -> tuple[list[AuditView], bool]:
    """Return the entries, and whether there are more."""
    found: list[AuditView] = []
    wanted = limit + 1 if limit else None
    while wanted is None or len(found) < wanted:
        size = _PAGE if wanted is None else min(_PAGE, wanted - len(found))
        page = await jobs.audit(after=before, limit=size, **filters)
        found += page
        if len(page) < size:
            break
        before = page[-1].number
    return (found[:limit], True) if wanted is not None and len(found) == wanted else (found, False)


def _write_table(found: list[AuditView]) -> None:
    columns = (
        Column("NUMBER", is_number=True),
        Column("WHEN"),
        Column("WHO", shrinks=True),
        Column("WHAT", shrinks=True),
        Column("TARGET", shrinks=True),
        Column("CHANGE", shrinks=True),
        Column("REASON", shrinks=True),
    )
    write_table(
        columns,
        (
            (
                str(entry.number),
                entry.at.astimezone().strftime("%m-%d %H:%M"),
                entry.actor,
                entry.action,
                entry.target,
                change_in_words(entry.before, entry.after),
                entry.reason,
            )
            for entry in found
        ),
    )


@audit.command("show")
@click.argument("number", metavar="NUMBER", type=click.IntRange(1))
@json_option
@url_option
@debug_option
def show_command(number: int, *, as_json: bool, url: str | None) -> None:
    """Show one entry with all its values."""
    from trellis.insight.views import as_json as document

    found = operate(url, lambda jobs: jobs.audit(after=number + 1, limit=1))
    if not found or found[0].number != number:
        complain(f"There is no entry {number}. See them with: trellis audit list")
        raise CommandFailed(NOT_FOUND)
    (entry,) = found
    if as_json:
        write_json(document(entry))
        return
    values = {
        "Number": str(entry.number),
        "When": local_time(entry.at),
        "Who": entry.actor,
        "What": entry.action,
        "Target": entry.target,
        "Change": change_in_words(entry.before, entry.after) or "-",
        "Reason": entry.reason or "-",
    }
    for label, text in values.items():
        write_line(f"{label:<8}{visible(text)}")


def entry_in_words(entry: AuditView) -> str:
    """Return an entry about a job on one line, without its target."""
    change = change_in_words(entry.before, entry.after)
    reason = f": {entry.reason}" if entry.reason else ""
    return f"{local_time(entry.at)}  {entry.action} by {entry.actor} ({change}){reason}"


def change_in_words(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return what changed: `queue mails -> slow, priority 0 -> 3`."""
    names = [*before, *(name for name in after if name not in before)]
    return ", ".join(_value_in_words(name, before, after) for name in names)


def _value_in_words(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    old, new = (_written(values[name]) if name in values else "" for values in (before, after))
    if not before:
        return f"{name} {new}"
    return f"{name} {old} -> {new}" if after else f"{name} {old}"


def _written(value: object) -> str:
    match value:
        case None:
            return "none"
        case str():
            return value
        case datetime():
            return local_time(value)
        case _:
            return safe_json(value)
