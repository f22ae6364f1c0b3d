"""`trellis workers list`: every worker process."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import rich_click as click

from trellis.cli.options import debug_option, form_options, url_option
from trellis.cli.writing import Form

if TYPE_CHECKING:
    from trellis.insight.views import WorkerView
    from trellis.operations.operator import Operator


@click.command("list")
@click.option("--all", "ended", is_flag=True, help="Also those that have gone.")
@form_options
@url_option
@debug_option
def command(*, ended: bool, form: Form, url: str | None) -> None:
    """List the worker processes, the newest first."""
    from trellis.cli.exits import complain  # noqa: PLC0415 - loaded when asked for
    from trellis.cli.place import operate  # noqa: PLC0415 - as above
    from trellis.cli.writing import write_each  # noqa: PLC0415 - as above
    from trellis.core.durations import to_datetime  # noqa: PLC0415 - as above
    from trellis.insight.views import as_json  # noqa: PLC0415 - as above

    async def look(jobs: Operator) -> tuple[list[WorkerView], datetime]:
        return await jobs.workers(ended=ended), to_datetime(await jobs.engine.now())

    found, now = operate(url, look)
    write_each(
        form,
        found,
        document=as_json,
        name=lambda worker: worker.id,
        table=lambda workers: _table(workers, now),
    )
    if form is Form.TABLE and not found:
        complain("No worker is running. Start one: trellis worker your_module:service")


def _table(found: list[WorkerView], now: datetime) -> None:
    from trellis.cli.spoken import briefly, listed  # noqa: PLC0415 - loaded when asked for
    from trellis.cli.tables import Cell, Column, write_table  # noqa: PLC0415 - as above

    styles = {"live": "green", "draining": "yellow", "silent": "bold red", "ended": "dim"}
    # A worker that nobody named is called after its host.
    is_elsewhere = any(worker.host not in worker.name for worker in found)
    columns = (
        Column("ID"),
        Column("NAME", gives_way=True),
        *([Column("HOST", gives_way=True)] if is_elsewhere else []),
        Column("PID", is_number=True),
        Column("STATE"),
        Column("BUSY", is_number=True),
        Column("SEEN", is_number=True),
        Column("UP", is_number=True),
        Column("VERSION"),
        Column("TYPES", gives_way=True),
    )
    write_table(
        columns,
        (
            (
                worker.id,
                worker.name,
                *([worker.host] if is_elsewhere else []),
                str(worker.pid),
                Cell(worker.state, styles[worker.state]),
                worker.load,
                briefly(now - worker.renewed_at),
                briefly(now - worker.opened_at),
                worker.version or "-",
                listed(worker.types),
            )
            for worker in found
        ),
    )
