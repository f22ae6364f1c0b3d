"""`trellis worker app:service`: run a service's jobs until told to stop."""

from __future__ import annotations

import rich_click as click

from trellis.cli.options import debug_option, url_option


@click.command("worker")
@click.argument("services", metavar="MODULE:SERVICE...", nargs=-1, required=True)
@url_option
@click.option("--concurrency", type=click.IntRange(1), help="Jobs at the same time (10).")
@click.option("--lease", metavar="SPAN", help="How long a silent worker keeps its jobs (30s).")
@click.option("--grace", metavar="SPAN", help="How long handlers may finish when stopping (25s).")
@click.option("--poll", metavar="SPAN", help="How often to look without a hint (1s).")
@debug_option
def command(
    services: tuple[str, ...],
    *,
    url: str | None,
    concurrency: int | None,
    lease: str | None,
    grace: str | None,
    poll: str | None,
) -> int:
    """Run the jobs of one or more services.

    MODULE:SERVICE names a Service in a module that can be imported from here, as in `hello:app`.

    Ctrl-C or SIGTERM stops in order: running handlers may finish within the grace, then their jobs
    are handed back. A second signal stops at once.
    """
    import asyncio  # noqa: PLC0415 - loaded when asked for
    import os  # noqa: PLC0415 - as above

    from trellis.cli.loading import load_service  # noqa: PLC0415 - as above
    from trellis.cli.running import run_worker  # noqa: PLC0415 - as above
    from trellis.contract.settings import worker_settings  # noqa: PLC0415 - as above

    settings = worker_settings(os.environ).with_options(
        concurrency=concurrency, lease=lease, grace=grace, poll=poll
    )
    loaded = [load_service(name) for name in services]
    for service in loaded:
        if url is not None:
            service.connection.point_at(url)
    return asyncio.run(run_worker(loaded, settings))
