"""`trellis queues`: what is in them, and whether they are open."""

from __future__ import annotations

import rich_click as click

from trellis.cli.lazy import LazyGroup


@click.command(
    "queues",
    cls=LazyGroup,
    package=__name__,
    names=("list", "pause", "resume", "drain"),
    default="list",
)
def command() -> None:
    """See the queues, and pause, drain or reopen them."""
