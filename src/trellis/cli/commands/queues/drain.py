"""`trellis queues drain`: accept no new jobs."""

from __future__ import annotations

import rich_click as click

from trellis.cli.options import debug_option, json_option, url_option


@click.command("drain")
@click.argument("names", metavar="SERVICE/QUEUE...", nargs=-1, required=True)
@json_option
@url_option
@debug_option
def command(names: tuple[str, ...], *, as_json: bool, url: str | None) -> None:
    """Accept no new jobs in these queues; what is there is still done."""
    from trellis.cli.queue_command import change_queues  # noqa: PLC0415 - loaded when asked for
    from trellis.operations.operator import Operator  # noqa: PLC0415 - as above

    change_queues(url, names, Operator.drain_queue, "is draining", machine=as_json)
