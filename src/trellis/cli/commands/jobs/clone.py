"""`trellis jobs clone`: create jobs again from old ones."""

from __future__ import annotations

from typing import Any

import rich_click as click

from trellis.cli.bulk_command import bulk_options, carry_out


@click.command("clone")
@bulk_options
def command(**given: Any) -> int:  # noqa: ANN401 - click's options
    """Create a new job from each old one's definition, and write the new ids.

    Jobs are named by ids (the beginning or the end will do), by ids on stdin with `-`, or chosen by
    the same filters as in `trellis jobs list`, which are counted and asked about first.
    """
    return carry_out("clone", lambda chosen, progress: chosen.clone(progress=progress), given)
