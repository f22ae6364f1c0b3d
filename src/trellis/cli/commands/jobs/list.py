"""`trellis jobs list`: the jobs that fit, newest first."""

from __future__ import annotations

from typing import Any

import rich_click as click

from trellis.cli.options import (
    debug_option,
    filter_options,
    form_options,
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
    """List jobs, newest first.

    A FILTER is a word such as `state:failed,dead`, `type:shop/sync`, `key:eu`, `tag:tenant=acme`,
    `since:1h`, `until:yesterday` or `error:timeout`; every one given must fit. The options below
    say the same.
    """
    from trellis.cli.listing import list_jobs  # noqa: PLC0415 - loaded when asked for

    list_jobs(url, read_filters(words, options), form, limit)
