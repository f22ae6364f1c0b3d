"""`trellis jobs top`: what is going on, live."""

from __future__ import annotations

import rich_click as click

from trellis.cli.options import debug_option, json_option, url_option


@click.command("top")
@click.option("--interval", metavar="SPAN", default="1s", help="How often to look (1s).")
@click.option("--once", is_flag=True, help="Show it once and exit, as without a terminal.")
@json_option
@url_option
@debug_option
def command(*, interval: str, once: bool, as_json: bool, url: str | None) -> None:
    """Watch what is going on: types, workers and running jobs. Ctrl-C ends it.

    Without a terminal it is shown once.
    """
    from trellis.cli.topping import show_top  # noqa: PLC0415 - loaded when asked for

    show_top(url, interval, once=once, machine=as_json)
