"""`trellis dlq`: dead letters, jobs that used up their attempts and wait for an operator."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import rich_click as click

from trellis.cli.app import CommandGroup
from trellis.cli.job_actions import action_options, run_action
from trellis.cli.jobs import list_jobs
from trellis.cli.options import (
    columns_option,
    debug_option,
    filter_options,
    form_options,
    limit_option,
    read_filters,
    reason_option,
    restrict_to_state,
    url_option,
)
from trellis.cli.output import Form

if TYPE_CHECKING:
    from trellis.operations.operator import Operator
    from trellis.operations.selection import Progress, Selection, Tally


@click.command("dlq", cls=CommandGroup, default="list")
def dlq() -> None:
    """List dead letters, replay them or dismiss them.

    A dead letter is a job that has used up its attempts and waits for an operator.
    """


@dlq.command("list")
@click.argument("words", metavar="[FILTER]...", nargs=-1)
@filter_options
@columns_option
@limit_option
@form_options
@url_option
@debug_option
def list_command(
    words: tuple[str, ...],
    *,
    columns: tuple[str, ...],
    limit: int,
    form: Form,
    url: str | None,
    **options: Any,  # noqa: ANN401 - click's options
) -> None:
    """List dead letters, newest first.

    Takes the same filters as `trellis jobs list`, except state.
    """
    filters = read_filters(words, options)
    restrict_to_state(filters, "dead")
    list_jobs(url, filters, form, limit, columns)


@dlq.command("replay")
@reason_option
@action_options
def replay(*, reason: str, **given: Any) -> int:  # noqa: ANN401 - click's options
    """Run dead letters again, each with a new budget of attempts."""

    def action(_: Operator, chosen: Selection, progress: Progress) -> Awaitable[Tally]:
        return chosen.replay(reason=reason, progress=progress)

    return run_action("replay", action, given, state="dead")


@dlq.command("dismiss")
@reason_option
@action_options
def dismiss(*, reason: str, **given: Any) -> int:  # noqa: ANN401 - click's options
    """Close dead letters; they remain visible as dismissed."""

    def action(_: Operator, chosen: Selection, progress: Progress) -> Awaitable[Tally]:
        return chosen.dismiss(reason=reason, progress=progress)

    return run_action("dismiss", action, given, state="dead")
