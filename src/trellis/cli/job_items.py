"""`trellis jobs items`: the small parts of a job, each with its status and error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import rich_click as click

from trellis.cli.app import operate
from trellis.cli.options import debug_option, form_options, url_option
from trellis.cli.output import Column, Form, complain, write_each, write_table

if TYPE_CHECKING:
    from trellis.insight.views import ItemView

_COLUMNS: Final = (
    Column("ITEM", shrinks=True),
    Column("STATUS"),
    Column("PHASE", shrinks=True),
    Column("ATTEMPT"),
    Column("DETAIL", shrinks=True),
)


@click.command("items")
@click.argument("job_id", metavar="ID")
@click.option("--failed", is_flag=True, help="Only items that failed.")
@click.option("--all-attempts", is_flag=True, help="The items of earlier attempts, too.")
@form_options
@url_option
@debug_option
def items(job_id: str, *, failed: bool, all_attempts: bool, form: Form, url: str | None) -> None:
    """List the items of a job as its latest attempt reported them.

    ATTEMPT says which attempt of the job reported an item; 1 is the first. Run the failed items
    again with `trellis jobs retry --failed-items ID`.
    """
    from trellis.insight.views import as_json

    found = operate(url, lambda jobs: jobs.items(job_id, all_attempts=all_attempts))
    chosen = [item for item in found if item.status == "failed" or not failed]
    write_each(form, chosen, document=as_json, name=lambda item: item.name, table=_table)
    if form is Form.TABLE and not chosen:
        complain("No item of the job failed." if found else "The job has reported no items.")


def _table(found: list[ItemView]) -> None:
    write_table(
        _COLUMNS,
        (
            (item.name, item.status, item.phase or "-", str(item.claim), item.detail or "")
            for item in found
        ),
    )
