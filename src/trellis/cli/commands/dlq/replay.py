"""`trellis dlq replay`: bring dead letters back."""

from __future__ import annotations

from typing import Any

import rich_click as click

from trellis.cli.bulk_command import bulk_options, carry_out


@click.command("replay")
@bulk_options
def command(**given: Any) -> int:  # noqa: ANN401 - click's options
    """Bring dead letters back, each with a fresh budget of attempts.

    Named by ids or chosen by filters, as in `trellis jobs retry`.
    """
    return carry_out(
        "replay",
        lambda chosen, progress: chosen.replay(progress=progress),
        given,
        among="dead",
    )
