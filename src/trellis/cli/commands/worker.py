"""`trellis worker app:service`: run a service's jobs until told to stop."""

from __future__ import annotations

from typing import Any

import rich_click as click

from trellis.cli.options import debug_option, url_option


@click.command("worker")
@click.argument("services", metavar="[MODULE:SERVICE]...", nargs=-1)
@url_option
@click.option("--concurrency", type=click.IntRange(1), help="Jobs at once per process (10).")
@click.option("--processes", type=click.IntRange(1), help="Worker processes (1).")
@click.option("--types", metavar="NAME,...", help="Run only these job types.")
@click.option("--queues", metavar="NAME,...", help="Run only jobs of these queues.")
@click.option("--once", is_flag=True, help="Run one job; exit 0 if it completed, else 1.")
@click.option("--max-jobs", type=click.IntRange(1), help="Replace a process after so many jobs.")
@click.option("--max-memory", metavar="SIZE", help="Replace a process above this, as in 512MB.")
@click.option("--lease", metavar="SPAN", help="How long a silent worker keeps its jobs (30s).")
@click.option("--grace", metavar="SPAN", help="How long handlers may finish when stopping (25s).")
@click.option("--poll", metavar="SPAN", help="How often to look without a hint (1s).")
@click.option("--name", metavar="NAME", help="What to call this worker (host and process).")
@click.option("--log-format", type=click.Choice(("text", "json")), help="Form of the log (text).")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error (info).")
@debug_option
def command(services: tuple[str, ...], *, url: str | None, once: bool, **options: Any) -> int:  # noqa: ANN401 - click's options
    """Run the jobs of one or more services.

    MODULE:SERVICE names a Service in a module that can be imported from here, as in `hello:app`;
    without one, TRELLIS_APP or `app` in trellis.toml or pyproject.toml says it.

    Ctrl-C or SIGTERM stops in order: running handlers may finish within the grace, then their jobs
    are handed back. A second signal stops at once.
    """
    from trellis.cli.guarding import run_guardian  # noqa: PLC0415 - loaded when asked for

    return run_guardian(services, url=url, once=once, options=options)
