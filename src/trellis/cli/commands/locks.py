"""`trellis locks`: who holds which lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from trellis.cli.options import debug_option, form_options, url_option
from trellis.cli.writing import Form

if TYPE_CHECKING:
    from trellis.insight.views import LockView


@click.command("locks")
@form_options
@url_option
@debug_option
def command(*, form: Form, url: str | None) -> None:
    """List the locks that are held, and by whom.

    A lock is freed by itself when its attempt has ended or its worker is lost.
    """
    from trellis.cli.exits import complain  # noqa: PLC0415 - loaded when asked for
    from trellis.cli.place import operate  # noqa: PLC0415 - as above
    from trellis.cli.writing import write_each  # noqa: PLC0415 - as above
    from trellis.insight.views import as_json  # noqa: PLC0415 - as above

    found = operate(url, lambda jobs: jobs.locks())
    write_each(form, found, document=as_json, name=lambda lock: lock.name, table=_table)
    if form is Form.TABLE and not found:
        complain("No lock is held.")


def _table(found: list[LockView]) -> None:
    from trellis.cli.spoken import clock_time  # noqa: PLC0415 - loaded when asked for
    from trellis.cli.tables import Column, write_table  # noqa: PLC0415 - as above

    columns = (
        Column("LOCK", gives_way=True),
        Column("WORKER", gives_way=True),
        Column("JOB"),
        Column("SINCE"),
    )
    write_table(
        columns,
        ((lock.name, lock.worker, lock.job_id or "-", clock_time(lock.since)) for lock in found),
    )
