"""`trellis keys list`: every key that is held or waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from trellis.cli.options import debug_option, form_options, url_option
from trellis.cli.writing import Form

if TYPE_CHECKING:
    from trellis.insight.views import KeyView


@click.command("list")
@click.option("--type", "job_type", metavar="SERVICE/TYPE", help="Only keys of this type.")
@form_options
@url_option
@debug_option
def command(*, job_type: str | None, form: Form, url: str | None) -> None:
    """List every key that is held or waited for."""
    from trellis.cli.exits import complain  # noqa: PLC0415 - loaded when asked for
    from trellis.cli.place import operate  # noqa: PLC0415 - as above
    from trellis.cli.writing import write_each  # noqa: PLC0415 - as above
    from trellis.insight.views import as_json  # noqa: PLC0415 - as above

    service, _, name = (job_type or "").partition("/")
    if job_type is not None and not name:
        raise click.UsageError(f"{job_type!r} names no service. Write --type service/type.")
    found = operate(url, lambda jobs: jobs.keys(service=service or None, type=name or None))
    write_each(form, found, document=as_json, name=lambda key: key.key, table=_table)
    if form is Form.TABLE and not found:
        complain("No key is held or waited for.")


def _table(found: list[KeyView]) -> None:
    from trellis.cli.spoken import listed  # noqa: PLC0415 - loaded when asked for
    from trellis.cli.tables import Cell, Column, write_table  # noqa: PLC0415 - as above

    columns = (
        Column("KEY", gives_way=True),
        Column("TYPE", gives_way=True),
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
