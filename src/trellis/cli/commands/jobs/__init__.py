"""`trellis jobs`: look at jobs and steer them."""

from __future__ import annotations

import rich_click as click

from trellis.cli.lazy import LazyGroup

_NAMES = (
    "list",
    "count",
    "show",
    "why",
    "logs",
    "wait",
    "top",
    "cancel",
    "retry",
    "clone",
    "delete",
)


@click.command("jobs", cls=LazyGroup, package=__name__, names=_NAMES)
def command() -> None:
    """Look at jobs and steer them.

    Jobs are chosen by the beginning or the end of their id, or by the same filter words everywhere,
    as in `trellis jobs list state:failed,dead type:shop/sync since:1h`.
    """
