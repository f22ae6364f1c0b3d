"""`trellis jobs cancel`: stop jobs."""

from __future__ import annotations

from typing import Any

import rich_click as click

from trellis.cli.bulk_command import bulk_options, carry_out


@click.command("cancel")
@click.option("--force", is_flag=True, help="End running attempts at once, whatever they do.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the journal.")
@bulk_options
def command(*, force: bool, reason: str, **given: Any) -> int:  # noqa: ANN401 - click's options
    """Stop jobs: waiting ones at once; the handlers of running ones are asked to stop.

    Jobs are named by ids (the beginning or the end will do), by ids on stdin with `-`, or chosen by
    the same filters as in `trellis jobs list`, which are counted and asked about first.
    """
    return carry_out(
        "cancel",
        lambda chosen, progress: chosen.cancel(reason, force=force, progress=progress),
        given,
    )
