"""`trellis jobs wait`: until jobs have ended, and exit by how they ended."""

from __future__ import annotations

import rich_click as click

from trellis.cli.options import debug_option, json_option, url_option


@click.command("wait")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--timeout", metavar="SPAN", help="Wait at most so long, as in 30s; then exit 6.")
@json_option
@url_option
@debug_option
def command(ids: tuple[str, ...], *, timeout: str | None, as_json: bool, url: str | None) -> int:
    """Wait until jobs have ended; `-` reads their ids from stdin.

    Exits with 0 if all completed, with 1 if one did not, and with 6 if one was still going on when
    the time was over. The result of a single job is written as JSON.
    """
    from trellis.cli.awaiting import wait_for  # noqa: PLC0415 - loaded when asked for
    from trellis.cli.naming import read_ids  # noqa: PLC0415 - as above

    return wait_for(url, read_ids(ids), timeout, machine=as_json)
