"""`trellis jobs why`: why a job does not run."""

from __future__ import annotations

import rich_click as click

from trellis.cli.options import debug_option, json_option, url_option


@click.command("why")
@click.argument("job_id", metavar="ID")
@json_option
@url_option
@debug_option
def command(job_id: str, *, as_json: bool, url: str | None) -> None:
    """Say in plain words why a job is not running, or what it does instead."""
    from trellis.cli.escaping import visible  # noqa: PLC0415 - loaded when asked for
    from trellis.cli.place import operate  # noqa: PLC0415 - as above
    from trellis.cli.writing import write_json, write_line  # noqa: PLC0415 - as above

    why = operate(url, lambda jobs: jobs.why(job_id))
    if as_json:
        write_json({"id": why.job.id, "causes": [cause._asdict() for cause in why.causes]})
        return
    write_line(f"Job {why.job.id} ({visible(why.job.name)}): {why.job.state}.")
    for cause in why.causes:
        write_line(visible(cause.text))
        if cause.command is not None:
            write_line(f"  → {visible(cause.command)}")
