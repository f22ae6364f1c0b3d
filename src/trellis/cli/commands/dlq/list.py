"""`trellis dlq list`: the dead letters."""

from __future__ import annotations

from typing import Any

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


@click.command("list")
@click.argument("words", metavar="[FILTER]...", nargs=-1)
@filter_options
@click.option(
    "--limit", metavar="N", default=50, type=click.IntRange(0), help="So many; 0 is all (50)."
)
@form_options
@url_option
@debug_option
def command(
    words: tuple[str, ...],
    *,
    limit: int,
    form: Form,
    url: str | None,
    **options: Any,  # noqa: ANN401 - click's options
) -> None:
    """List dead letters, newest first.

    Takes the same filters as `trellis jobs list`, except state.
    """
    from trellis.cli.listing import list_jobs  # noqa: PLC0415 - loaded when asked for

    filters = read_filters(words, options)
    only_state(filters, "dead")
    list_jobs(url, filters, form, limit)
