"""The shape that all bulk verbs share on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rich_click as click

from trellis.cli.options import (
    debug_option,
    filter_options,
    form_options,
    only_state,
    read_filters,
    url_option,
)
from trellis.cli.writing import Form

if TYPE_CHECKING:
    from trellis.cli.bulk import Action
    from trellis.operations.selection import Verb


def bulk_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the targets, the filters, `--all`, `--yes`, `--dry-run` and the forms of output."""
    for add in (
        debug_option,
        url_option,
        form_options,
        click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
        click.option("--all", "everything", is_flag=True, help="All jobs it can be done to."),
        filter_options,
        click.argument("targets", metavar="[ID|FILTER|-]...", nargs=-1),
    ):
        command = add(command)
    return command


def carry_out(
    verb: Verb,
    action: Action,
    given: dict[str, Any],
    *,
    among: str | None = None,
) -> int:
    """Do what was asked; `among` is the one state this command is about, if there is one."""
    from trellis.cli.bulk import Order, run_bulk  # noqa: PLC0415 - loaded when asked for
    from trellis.cli.naming import read_targets  # noqa: PLC0415 - as above

    targets = read_targets(given["targets"])
    filters = read_filters(targets.words, given)
    chosen = bool(filters)
    if among is not None:
        only_state(filters, among)
    if targets.by_id and (chosen or given["everything"]):
        raise click.UsageError("Name jobs by their ids, or choose them by filters, not both.")
    if not (targets.by_id or chosen or given["everything"]):
        raise click.UsageError(
            f"Which jobs? Name ids, or choose with filters such as type:sync since:1h, "
            f"or {verb} --all."
        )
    form: Form = given["form"]
    order = Order(verb, targets, filters, form, is_dry=given["dry_run"], is_sure=given["yes"])
    return run_bulk(given["url"], order, action)
