"""`trellis dlq`: dead letters, jobs that used up their attempts and wait for an operator."""

from __future__ import annotations

import rich_click as click

from trellis.cli.lazy import LazyGroup


@click.command(
    "dlq",
    cls=LazyGroup,
    package=__name__,
    names=("list", "replay", "dismiss"),
    default="list",
)
def command() -> None:
    """Look at dead letters, bring them back or close them.

    A dead letter is a job that has used up its attempts and waits for an operator.
    """
