"""`trellis dlq dismiss`: close dead letters."""

from __future__ import annotations

from typing import Any

import rich_click as click

from trellis.cli.bulk_command import bulk_options, carry_out


@click.command("dismiss")
@bulk_options
def command(**given: Any) -> int:  # noqa: ANN401 - click's options
    """Close dead letters for good; they stay visible as dismissed.

    Named by ids or chosen by filters, as in `trellis jobs retry`.
    """
    return carry_out(
        "dismiss",
        lambda chosen, progress: chosen.dismiss(progress=progress),
        given,
        among="dead",
    )
