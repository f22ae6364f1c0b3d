"""`trellis jobs follow`: everything that happens to jobs, as it happens."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import TYPE_CHECKING

import rich_click as click

from trellis.cli.app import OK, operate
from trellis.cli.options import debug_option, url_option
from trellis.cli.output import complain, safe_json, stdout_console, visible, write_line

if TYPE_CHECKING:
    from rich.text import Text

    from trellis.insight.feed import ChangeFilters, JobChange
    from trellis.operations.operator import Operator

_SHORT_ID = 8


@click.command("follow")
@click.option("--service", metavar="NAME", multiple=True, help="Only jobs of this service.")
@click.option("--type", "type_", metavar="TYPE", multiple=True, help="Only this type of jobs.")
@click.option("--state", metavar="STATE", multiple=True, help="Only changes into this state.")
@click.option("--kind", metavar="KIND", multiple=True, help="Only this kind of event.")
@click.option(
    "--after",
    metavar="CURSOR",
    default="now",
    help='Begin after this cursor; "start": at the first change that is kept (now).',
)
@click.option("--limit", metavar="N", type=click.IntRange(1), help="End after N changes.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document per line.")
@url_option
@debug_option
def follow(
    *,
    service: tuple[str, ...],
    type_: tuple[str, ...],
    state: tuple[str, ...],
    kind: tuple[str, ...],
    after: str,
    limit: int | None,
    as_json: bool,
    url: str | None,
) -> int:
    """Show everything that happens to jobs, as it happens; Ctrl-C ends it.

    Each JSON document has the `cursor` after it, from which `--after` goes on without a gap.
    """
    filters: ChangeFilters = {"type": type_, "state": state, "kind": kind}
    start = None if after == "start" else after

    async def work(jobs: Operator) -> int:
        left = limit
        async with aclosing(jobs.changes(start, service=service, **filters)) as changes:
            async for change in changes:
                _write(change, as_json=as_json)
                left = None if left is None else left - 1
                if left == 0:
                    break
        return OK

    try:
        return operate(url, work)
    except KeyboardInterrupt:
        complain("Stopped.")
        return OK


def _write(change: JobChange, *, as_json: bool) -> None:
    from trellis.insight.views import as_json as document

    if as_json:
        write_line(safe_json(document(change)))
    else:
        stdout_console().print(_text(change))
    sys.stdout.flush()


def _text(change: JobChange) -> Text:
    from rich.text import Text

    event = change.event
    text = Text(f"{event.at.astimezone():%H:%M:%S.%f}"[:-3], "dim")
    text.append(f" {change.job_id[-_SHORT_ID:]} ", "dim").append(visible(change.name))
    text.append(f" {event.kind}", "bold")
    if event.state not in {event.kind, "active"}:
        text.append(f" ({event.state})")
    if event.attempt:
        text.append(f" attempt {event.attempt}", "dim")
    error = event.data.get("error")
    if error is not None:
        text.append(f" {visible(str(error))}", "red")
    return text
