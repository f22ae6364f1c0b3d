"""`trellis jobs retry`: run failed jobs again."""

from __future__ import annotations

from typing import Any

import rich_click as click

from trellis.cli.bulk_command import bulk_options, carry_out


@click.command("retry")
@bulk_options
def command(**given: Any) -> int:  # noqa: ANN401 - click's options
    """Run failed jobs again, each with a fresh budget of attempts.

    Jobs are named by ids (the beginning or the end will do), by ids on stdin with `-`, or chosen by
    the same filters as in `trellis jobs list`, which are counted and asked about first.
    """
    return carry_out("retry", lambda chosen, progress: chosen.retry(progress=progress), given)
