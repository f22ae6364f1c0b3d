"""`trellis archive`: which services archive their expired jobs, and the switch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import rich_click as click

from trellis.cli.app import CommandGroup, operate
from trellis.cli.options import (
    debug_option,
    form_options,
    json_option,
    reason_option,
    url_option,
)
from trellis.cli.output import Cell, Column, Form, complain, write_each, write_json, write_table

if TYPE_CHECKING:
    from datetime import datetime

    from trellis.insight.archived import ArchiveView

_COLUMNS: Final = (
    Column("SERVICE"),
    Column("ARCHIVE"),
    Column("WAITING SINCE"),
    Column("FAILING SINCE"),
    Column("ERROR", shrinks=True),
)


@click.command("archive", cls=CommandGroup, default="list")
def archive() -> None:
    """List the archives of services, and switch them on or off.

    A service with an archiver (`@service.archive`) gives its expired jobs to it before they are
    removed.
    """


@archive.command("list")
@form_options
@url_option
@debug_option
def list_command(*, form: Form, url: str | None) -> None:
    """List the services that archive, and how their archivers do."""
    from trellis.insight.views import as_json

    found = operate(url, lambda jobs: jobs.archives())
    write_each(form, found, document=as_json, name=lambda each: each.service, table=_table)
    if form is Form.TABLE and not found:
        complain("No service archives its jobs.")


def _table(found: list[ArchiveView]) -> None:
    write_table(
        _COLUMNS,
        (
            (
                each.service,
                "on" if each.on else "off",
                _moment(each.waiting_since),
                Cell(_moment(each.failing_since), "red"),
                each.error or "",
            )
            for each in found
        ),
    )


def _moment(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M}"


@archive.command("off")
@click.argument("service", metavar="SERVICE")
@reason_option
@json_option
@url_option
@debug_option
def off_command(service: str, *, reason: str, as_json: bool, url: str | None) -> None:
    """Remove expired jobs of a service without archiving them, those that wait, too."""
    from trellis.insight.views import as_json as document

    view = operate(url, lambda jobs: jobs.archive_off(service, reason))
    if as_json:
        write_json(document(view))
    complain(f"Expired jobs of {service} are removed without being archived.")


@archive.command("on")
@click.argument("service", metavar="SERVICE")
@reason_option
@json_option
@url_option
@debug_option
def on_command(service: str, *, reason: str, as_json: bool, url: str | None) -> None:
    """Archive expired jobs of a service again before they are removed."""
    from trellis.insight.views import as_json as document

    view = operate(url, lambda jobs: jobs.archive_on(service, reason))
    if as_json:
        write_json(document(view))
    complain(f"Expired jobs of {service} are archived before they are removed.")
