"""`trellis queues list`: every queue that has jobs or settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from trellis.cli.options import debug_option, form_options, url_option
from trellis.cli.writing import Form

if TYPE_CHECKING:
    from trellis.insight.views import QueueView


@click.command("list")
@form_options
@url_option
@debug_option
def command(*, form: Form, url: str | None) -> None:
    """List every queue that has jobs or settings."""
    from trellis.cli.exits import complain  # noqa: PLC0415 - loaded when asked for
    from trellis.cli.place import operate  # noqa: PLC0415 - as above
    from trellis.cli.writing import write_each  # noqa: PLC0415 - as above
    from trellis.insight.views import as_json  # noqa: PLC0415 - as above

    found = operate(url, lambda jobs: jobs.queues())
    write_each(
        form,
        found,
        document=as_json,
        name=lambda queue: f"{queue.service}/{queue.queue}",
        table=_table,
    )
    if form is Form.TABLE and not found:
        complain("No queue is known: no job was created here, or none is kept.")


def _table(found: list[QueueView]) -> None:
    from trellis.cli.tables import Cell, Column, write_table  # noqa: PLC0415 - loaded when asked

    columns = (
        Column("QUEUE", gives_way=True),
        Column("WAITING", is_number=True),
        Column("ACTIVE", is_number=True),
        Column("NOTE"),
    )
    write_table(
        columns,
        (
            (
                f"{queue.service}/{queue.queue}",
                f"{queue.waiting:,}",
                f"{queue.active:,}",
                Cell(_note(queue), "yellow"),
            )
            for queue in found
        ),
    )


def _note(queue: QueueView) -> str:
    said = [word for word in ("paused", "draining") if getattr(queue, word)]
    return ", ".join(said)
