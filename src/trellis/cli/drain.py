"""`trellis drain`: one switch that keeps new jobs out of all queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import rich_click as click

from trellis.cli.app import CommandGroup, operate
from trellis.cli.options import debug_option, json_option, reason_option, url_option
from trellis.cli.output import complain, visible, write_json, write_line

if TYPE_CHECKING:
    from trellis.insight.shared_views import DrainView

_SHOWN: Final = 10


@click.command("drain", cls=CommandGroup, default="status")
def drain() -> None:
    """Stop accepting new jobs everywhere, or accept them again.

    While it is on, creating a job is refused in every queue, from programs, handlers and SQL.
    Workers go on with the jobs that are there; to stop those, use `trellis queues pause`.
    """


@drain.command("on")
@reason_option
@json_option
@url_option
@debug_option
def on_command(*, reason: str, as_json: bool, url: str | None) -> None:
    """Accept no new job in any queue; the jobs that are there still run."""
    _report(operate(url, lambda jobs: jobs.drain_all(reason)), as_json=as_json)


@drain.command("off")
@reason_option
@json_option
@url_option
@debug_option
def off_command(*, reason: str, as_json: bool, url: str | None) -> None:
    """Accept new jobs again, except in queues that drain by themselves."""
    _report(operate(url, lambda jobs: jobs.accept_all(reason)), as_json=as_json)


def _report(found: DrainView, *, as_json: bool) -> None:
    from trellis.insight.views import as_json as document

    if as_json:
        write_json(document(found))
    complain(drain_in_words(found))


@drain.command("status")
@json_option
@url_option
@debug_option
def status_command(*, as_json: bool, url: str | None) -> None:
    """Say whether new jobs are accepted, and who changed that, when and why."""
    from trellis.cli.format import local_time
    from trellis.insight.views import as_json as document

    changes = operate(url, lambda jobs: jobs.drain_history(_SHOWN))
    if as_json:
        is_on = bool(changes) and changes[0].on
        write_json({"on": is_on, "changes": [document(each) for each in changes]})
        return
    write_line(drain_in_words(changes[0]) if changes else "New jobs are accepted.")
    for each in changes:
        reason = f": {each.reason}" if each.reason else ""
        when = "" if each.since is None else local_time(each.since)
        write_line(visible(f"  {when}  {'on' if each.on else 'off':<3}  {each.actor}{reason}"))


def drain_in_words(found: DrainView) -> str:
    """Return what is in force as a sentence."""
    if not found.on:
        return "New jobs are accepted."
    return "No new job is accepted in any queue; workers go on with the jobs that are there."
