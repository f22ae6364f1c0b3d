"""`trellis jobs logs`: what a job's handler said."""

from __future__ import annotations

import rich_click as click

from trellis.cli.options import debug_option, json_option, url_option


@click.command("logs")
@click.argument("job_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@json_option
@click.option("--jsonl", is_flag=True, help="Write one JSON document per line.")
@url_option
@debug_option
def command(job_id: str, *, follow: bool, as_json: bool, jsonl: bool, url: str | None) -> None:
    """Show the log of a job, oldest line first."""
    from trellis.cli.log_view import write_logs  # noqa: PLC0415 - loaded when asked for
    from trellis.cli.writing import Form  # noqa: PLC0415 - as above

    if as_json and jsonl:
        raise click.UsageError("Say only one of --json and --jsonl.")
    form = Form.JSON if as_json else Form.JSONL if jsonl else Form.TABLE
    write_logs(url, job_id, form, follow=follow)
