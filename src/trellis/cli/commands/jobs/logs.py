"""`trellis jobs logs`: what a job's handler said."""

from __future__ import annotations

import rich_click as click

from trellis.cli.options import debug_option, url_option


@click.command("logs")
@click.argument("job_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--jsonl", is_flag=True, help="Write one JSON document per line.")
@url_option
@debug_option
def command(job_id: str, *, follow: bool, jsonl: bool, url: str | None) -> None:
    """Show the log of a job, oldest line first."""
    from trellis.cli.log_view import write_logs  # noqa: PLC0415 - loaded when asked for

    write_logs(url, job_id, follow=follow, jsonl=jsonl)
