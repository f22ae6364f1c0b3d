"""`trellis keys`: which jobs hold which keys, and which wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import rich_click as click

from trellis.cli.app import CommandGroup, operate
from trellis.cli.format import counted, listed, write_job_table
from trellis.cli.options import debug_option, form_options, json_option, reason_option, url_option
from trellis.cli.output import (
    Cell,
    Column,
    Form,
    complain,
    visible,
    write_each,
    write_json,
    write_line,
    write_table,
)
from trellis.core.states import LIVE

if TYPE_CHECKING:
    from datetime import datetime

    from trellis.insight.shared_views import KeyView
    from trellis.insight.views import JobView
    from trellis.operations.operator import Operator

_SHOWN: Final = 20


@click.command("keys", cls=CommandGroup, default="list")
def keys() -> None:
    """List keys, show which jobs hold them, and release a blocked key."""


# -- list ----------------------------------------------------------------------------------------


@keys.command("list")
@click.option("--type", "job_type", metavar="SERVICE/TYPE", help="Only keys of this type.")
@form_options
@url_option
@debug_option
def list_command(*, job_type: str | None, form: Form, url: str | None) -> None:
    """List every key that a job holds or waits for."""
    from trellis.insight.views import as_json

    service, _, name = (job_type or "").partition("/")
    if job_type is not None and not name:
        raise click.UsageError(f"{job_type!r} has no service. Write --type service/type.")
    found = operate(url, lambda jobs: jobs.keys(service=service or None, type=name or None))
    write_each(form, found, document=as_json, name=lambda key: key.key, table=_table)
    if form is Form.TABLE and not found:
        complain("No job holds or waits for a key.")


def _table(found: list[KeyView]) -> None:
    columns = (
        Column("KEY", shrinks=True),
        Column("TYPE", shrinks=True),
        Column("WAITING", is_number=True),
        Column("HELD BY"),
        Column("NOTE"),
    )
    write_table(
        columns,
        (
            (
                key.key,
                f"{key.service}/{key.type}",
                f"{key.waiting:,}",
                listed(key.holders, 1) or "-",
                Cell("blocked", "bold red") if key.blocked else "",
            )
            for key in found
        ),
    )


# -- show ----------------------------------------------------------------------------------------


@keys.command("show")
@click.argument("key", metavar="KEY")
@json_option
@url_option
@debug_option
def show_command(key: str, *, as_json: bool, url: str | None) -> None:
    """Show one key: the jobs that hold it and the jobs that wait for it, newest first."""
    from trellis.insight.views import as_json as document

    found = operate(url, lambda jobs: _load(jobs, key))
    if as_json:
        write_json([{**document(each.key), "jobs": document(each.jobs)} for each in found])
        return
    for each in found:
        write_line(visible(_summary(each.key)))
        write_job_table(each.jobs, each.now)


class KeyAndJobs(NamedTuple):
    """A key of one type, and the newest of the jobs that hold it or wait for it."""

    key: KeyView
    jobs: list[JobView]
    now: datetime


async def _load(jobs: Operator, key: str) -> list[KeyAndJobs]:
    from trellis.core.durations import to_datetime

    now = to_datetime(await jobs.engine.now())
    found = []
    for each in await jobs.key(key):
        chosen = jobs.find(service=each.service, type=each.type, key=key, state=sorted(LIVE))
        found.append(KeyAndJobs(each, list((await chosen.page(limit=_SHOWN)).jobs), now))
    return found


def _summary(key: KeyView) -> str:
    held = f"held by {counted(len(key.holders))}"
    text = f"Key {key.key!r} of {key.service}/{key.type}: {held}, {key.waiting:,} waiting"
    if not key.blocked:
        return f"{text}."
    command = f"trellis keys release {key.holders[0]}"
    return f"{text}; blocked by a lost attempt. Release it with: {command}"


# -- release -------------------------------------------------------------------------------------


@keys.command("release")
@click.argument("held", metavar="KEY|ID")
@click.option(
    "--then",
    type=click.Choice(("retry", "fail")),
    default="retry",
    help="What to do with the job that holds it (retry).",
)
@reason_option
@json_option
@url_option
@debug_option
def release_command(
    held: str, *, then: Literal["retry", "fail"], reason: str, as_json: bool, url: str | None
) -> None:
    """Release a key whose attempt was lost, once you know that its work has stopped.

    Only keys of types with on_lost="block" are ever blocked. Name the key, or the job that holds
    it. A key whose holder still runs is not released: cancel the job instead.
    """
    from trellis.insight.views import as_json as document

    job = operate(url, lambda jobs: jobs.release_key(held, then, reason=reason))
    if as_json:
        write_json(document(job))
    complain(f"Key {job.key!r} is released; the state of job {job.id} is now {job.state}.")
