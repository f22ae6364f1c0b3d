"""`trellis keys show`: who holds one key, and who waits for it."""

from __future__ import annotations

import rich_click as click

from trellis.cli.options import debug_option, json_option, url_option


@click.command("show")
@click.argument("key", metavar="KEY")
@json_option
@url_option
@debug_option
def command(key: str, *, as_json: bool, url: str | None) -> None:
    """Show one key: the jobs that hold it and those that wait for it, the newest first."""
    from trellis.cli.key_view import show_key  # noqa: PLC0415 - loaded when asked for

    show_key(url, key, machine=as_json)
