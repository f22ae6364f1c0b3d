"""`trellis workers`: the worker processes."""

from __future__ import annotations

import rich_click as click

from trellis.cli.lazy import LazyGroup


@click.command("workers", cls=LazyGroup, package=__name__, names=("list", "drain"), default="list")
def command() -> None:
    """See the worker processes, and ask one to finish and go."""
