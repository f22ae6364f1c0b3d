"""`trellis keys`: who holds which key."""

from __future__ import annotations

import rich_click as click

from trellis.cli.lazy import LazyGroup


@click.command(
    "keys", cls=LazyGroup, package=__name__, names=("list", "show", "release"), default="list"
)
def command() -> None:
    """See which jobs hold which keys, and free a blocked one."""
