"""`trellis jobs serve` and `rebuild`: the admin runtime of jobs on NATS JetStream."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rich_click as click

from trellis.cli.app import resolve_url
from trellis.cli.options import debug_option, url_option
from trellis.cli.output import complain
from trellis.engines.redaction import shown
from trellis.errors import CapabilityMissing

if TYPE_CHECKING:
    from trellis.admin.runtime import AdminRuntime

_Command = Callable[..., Any]


def _projection_option(command: _Command) -> _Command:
    return click.option(
        "--projection", "path", metavar="FILE",
        help="The SQLite file of the projection; else TRELLIS_JOBS_DB_PATH, else "
        "/var/lib/trellis/jobs.sqlite.",
    )(command)  # fmt: skip


@click.command("serve")
@_projection_option
@url_option
@debug_option
def serve(*, path: str | None, url: str | None) -> None:
    """Keep a projection of the jobs on NATS, and answer from it.

    Lists, counts, deadlines of waiting jobs and the RPC Jobs.* need it; jobs are created and run
    without it. Several may run at once, each with its own file or with one file together.
    """
    _run(_serve(resolve_url(url), _path(path)))


@click.command("rebuild")
@_projection_option
@url_option
@debug_option
def rebuild(*, path: str | None, url: str | None) -> None:
    """Make the projection of the jobs on NATS again, from the first message.

    Nothing is lost: it has only what the streams have. Lists are not complete until it has ended.
    """
    end = _run(_rebuild(resolve_url(url), _path(path)))
    complain(f"The projection has all {end:,} messages.")


def _path(given: str | None) -> str:
    opening = _opening()
    return given or os.environ.get(opening.PATH_VARIABLE) or opening.DEFAULT_PATH


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

    return asyncio.run(work)


async def _serve(url: str, path: str) -> None:
    import asyncio

    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with _opening().admin_runtime(url, path, changes=True):
        complain(f"Serving the jobs at {shown(url)} from {path}. Ctrl-C ends it.")
        await ended.wait()


async def _rebuild(url: str, path: str) -> int:
    from trellis.admin.rebuild import rebuild as make_again

    def report(place: int, end: int) -> None:
        if place and place < end:
            complain(f"{place:,} of {end:,} messages")

    runtime: AdminRuntime
    async with _opening().admin_runtime(url, path, changes=False) as runtime:
        return await make_again(runtime, report)
