"""`trellis jobs delete`: remove ended jobs."""

from __future__ import annotations

from typing import Any

import rich_click as click

from trellis.cli.bulk_command import bulk_options, carry_out


@click.command("delete")
@bulk_options
def command(**given: Any) -> int:  # noqa: ANN401 - click's options
    """Remove ended jobs at once, with their journals and logs. There is no way back.

    Jobs are named by ids (the beginning or the end will do), by ids on stdin with `-`, or chosen by
    the same filters as in `trellis jobs list`, which are counted and asked about first.
    """
    return carry_out("delete", lambda chosen, progress: chosen.delete(progress=progress), given)
