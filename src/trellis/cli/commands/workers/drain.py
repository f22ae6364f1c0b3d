"""`trellis workers drain`: ask worker processes to finish and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from trellis.cli.options import debug_option, json_option, url_option

if TYPE_CHECKING:
    from trellis.insight.views import WorkerView
    from trellis.operations.operator import Operator


@click.command("drain")
@click.argument("names", metavar="ID|NAME...", nargs=-1, required=True)
@json_option
@url_option
@debug_option
def command(names: tuple[str, ...], *, as_json: bool, url: str | None) -> None:
    """Ask worker processes to take no more jobs, finish what they have, and go.

    They hear of it with their next renewal, within a third of their lease.
    """
    from trellis.cli.exits import complain  # noqa: PLC0415 - loaded when asked for
    from trellis.cli.place import operate  # noqa: PLC0415 - as above
    from trellis.cli.writing import write_json  # noqa: PLC0415 - as above
    from trellis.insight.views import as_json as document  # noqa: PLC0415 - as above

    async def drain(jobs: Operator) -> list[WorkerView]:
        return [await jobs.drain(name) for name in names]

    asked = operate(url, drain)
    if as_json:
        write_json(document(asked))
    for worker in asked:
        complain(f"Worker {worker.name} ({worker.id}) was asked to finish and go.")
