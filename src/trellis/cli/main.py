"""The entry point: finds the command, runs it, turns whatever it raises into words and a code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Final

import rich_click as click

from trellis import __version__
from trellis.cli.exits import OK, report
from trellis.cli.lazy import LazyGroup

_COMMANDS: Final = (
    "demo",
    "worker",
    "enqueue",
    "jobs",
    "dlq",
    "keys",
    "workers",
    "queues",
    "locks",
    "doctor",
    "migrate",
    "move",
    "completion",
)


@click.command(
    cls=LazyGroup,
    package="trellis.cli.commands",
    names=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="trellis")
def trellis() -> None:
    """Durable jobs for Python services.

    Start with `trellis demo`, then `trellis worker your_module:service`.

    Every command takes --url, else TRELLIS_URL, else url in trellis.toml or the [tool.trellis]
    section of pyproject.toml. Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 refused,
    5 engine unreachable, 6 timed out, 130 interrupted.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit code."""
    debug = "--debug" in arguments or bool(os.environ.get("TRELLIS_DEBUG"))
    try:
        result = trellis.main(list(arguments), prog_name="trellis", standalone_mode=False)
    except BaseException as error:  # noqa: BLE001 - the last place that can put it into words
        return report(error, debug=debug)
    return result if isinstance(result, int) else OK


def main() -> None:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that cannot show a letter gets its number, never a traceback.
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))
