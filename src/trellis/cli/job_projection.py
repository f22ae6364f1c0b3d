"""`trellis jobs serve` and `rebuild`: the admin runtime of jobs on NATS JetStream."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rich_click as click

from trellis.cli.app import resolve_url
from trellis.cli.options import debug_option, url_option
from trellis.cli.output import complain
from trellis.engines import is_nats
from trellis.engines.redaction import shown
from trellis.errors import CapabilityMissing, ConfigurationError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from trellis.admin.rebuild import Progress
    from trellis.admin.runtime import AdminRuntime

_Command = Callable[..., Any]
#: Seconds between two lines about a rebuild.
_SHOW_EVERY = 2.0


def projection_option(command: _Command) -> _Command:
    """Add the option that says where the projection is."""
    return click.option(
        "--projection", "place", metavar="FILE|URL",
        help="The projection: a SQLite file, or postgresql://... to share it; else "
        "TRELLIS_JOBS_DB_PATH, else /var/lib/trellis/jobs.sqlite.",
    )(command)  # fmt: skip


@click.command("serve")
@projection_option
@url_option
@debug_option
def serve(*, place: str | None, url: str | None) -> None:
    """Keep a projection of the jobs on NATS, and answer from it.

    Lists, counts, deadlines of waiting jobs and the RPC Jobs.* need it; jobs are created and run
    without it. Several may run at once, each with its own file, or with one file or database
    together. A projection that does not fit the streams, or is damaged, is made again.
    """
    _run(_serve(resolve_url(url), _opening().place_of(place)))


@click.command("rebuild")
@projection_option
@url_option
@debug_option
def rebuild(*, place: str | None, url: str | None) -> None:
    """Make the projection of the jobs on NATS again, from the first message.

    Nothing is lost: it has only what the streams have. Lists are not complete until it has ended.
    """
    done = _run(_rebuild(resolve_url(url), _opening().place_of(place)))
    complain(
        f"The projection has all {done.end:,} messages, made in {done.seconds:,.1f} s "
        f"({done.rate:,.0f} per second)."
    )


def hosting(url: str, place: str | None) -> AbstractAsyncContextManager[None] | None:
    """Return the admin runtime to run beside a server; None: the jobs are not on NATS."""
    if not is_nats(url):
        if place is not None:
            raise ConfigurationError(
                f"--projection is for jobs on NATS; those at {shown(url)} need none."
            )
        return None
    opening = _opening()
    place = opening.place_of(place)
    opening.check_place(place)
    runtime: AbstractAsyncContextManager[None] = opening.hosted(url, place)
    return runtime


def _opening() -> Any:  # noqa: ANN401 - a module
    try:
        from trellis.admin import opening
    except ModuleNotFoundError as error:
        raise CapabilityMissing(
            f"Jobs on NATS need {error.name}, which is not installed. Run: "
            "pip install 'trellis-jobs[nats]'"
        ) from error
    return opening


def _run(work: Any) -> Any:  # noqa: ANN401 - what the coroutine returns
    import asyncio

    from trellis.worker.child_process import tune_collector

    tune_collector()
    return asyncio.run(work)


async def _serve(url: str, place: str) -> None:
    import asyncio

    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)

    def say() -> None:
        complain(f"Serving the jobs at {shown(url)} from {shown(place)}. Ctrl-C ends it.")

    await _opening().serve(url, place, ended, say)


async def _rebuild(url: str, place: str) -> Progress:
    from trellis.admin.rebuild import rebuild as make_again

    shown_at = 0.0

    def report(progress: Progress) -> None:
        nonlocal shown_at
        if progress.place and progress.seconds - shown_at >= _SHOW_EVERY:
            shown_at = progress.seconds
            share = progress.place / progress.end
            complain(
                f"{progress.place:,} of {progress.end:,} messages ({share:.0%}) after "
                f"{progress.seconds:,.0f} s"
            )

    runtime: AdminRuntime
    async with _opening().admin_runtime(url, place, changes=False) as runtime:
        return await make_again(runtime, report)
