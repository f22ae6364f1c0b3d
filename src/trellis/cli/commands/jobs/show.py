"""`trellis jobs show`: everything about one job."""

from __future__ import annotations

import rich_click as click

from trellis.cli.options import debug_option, json_option, url_option


@click.command("show")
@click.argument("job_id", metavar="ID")
@json_option
@url_option
@debug_option
def command(job_id: str, *, as_json: bool, url: str | None) -> None:
    """Show one job: what was asked, where it stands, and all that happened to it.

    The beginning or the end of the ID will do while it is unique. Secrets are masked.
    """
    from trellis.cli.showing import show_job  # noqa: PLC0415 - loaded when asked for

    show_job(url, job_id, machine=as_json)
