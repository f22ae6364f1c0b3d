"""`trellis locks`: which attempt or worker holds which lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from trellis.cli.app import operate
from trellis.cli.format import local_time
from trellis.cli.options import debug_option, form_options, url_option
from trellis.cli.output import Column, Form, complain, write_each, write_table

if TYPE_CHECKING:
    from trellis.insight.shared_views import LockView


@click.command("locks")
@form_options
@url_option
@debug_option
def locks(*, form: Form, url: str | None) -> None:
    """List the locks that are held, with the worker and job that hold them.

    A lock is released automatically when its attempt ends or its worker is lost. The worker that
    does the maintenance for all holds one, too.
    """
    from trellis.insight.views import as_json

    found = operate(url, lambda jobs: jobs.locks())
    write_each(form, found, document=as_json, name=lambda lock: lock.name, table=_table)
    if form is Form.TABLE and not found:
        complain("No lock is held.")


def _table(found: list[LockView]) -> None:
    from trellis.worker.maintenance import LEADER

    columns = (
        Column("LOCK", shrinks=True),
        Column("WORKER", shrinks=True),
        Column("JOB"),
        Column("SINCE"),
    )
    write_table(
        columns,
        (
            (
                "(maintenance)" if lock.name == LEADER else lock.name,
                lock.worker,
                lock.job_id or "-",
                local_time(lock.since),
            )
            for lock in found
        ),
    )
