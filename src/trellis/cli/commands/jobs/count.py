"""`trellis jobs count`: how many jobs fit, per group."""

from __future__ import annotations

from typing import Any

import rich_click as click

from trellis.cli.options import (
    debug_option,
    filter_options,
    json_option,
    read_filters,
    url_option,
)


@click.command("count")
@click.argument("words", metavar="[FILTER]...", nargs=-1)
@filter_options
@click.option(
    "--by",
    type=click.Choice(("state", "type", "queue", "service", "error")),
    default="state",
    help="What to count by (state).",
)
@json_option
@url_option
@debug_option
def command(
    words: tuple[str, ...],
    *,
    by: Any,  # noqa: ANN401 - one of the choices
    as_json: bool,
    url: str | None,
    **options: Any,  # noqa: ANN401 - click's options
) -> None:
    """Count jobs by state, type, queue, service or error.

    Takes the same filters as `trellis jobs list`.
    """
    from trellis.cli.place import operate  # noqa: PLC0415 - loaded when asked for
    from trellis.cli.tables import Column, write_table  # noqa: PLC0415 - as above
    from trellis.cli.writing import write_json  # noqa: PLC0415 - as above

    filters = read_filters(words, options)
    counts = operate(url, lambda jobs: jobs.count(by, **filters))
    if as_json:
        write_json(counts)
        return
    columns = (Column(by.upper(), gives_way=True), Column("JOBS", is_number=True))
    write_table(columns, [(name or "-", f"{count:,}") for name, count in counts.items()])
