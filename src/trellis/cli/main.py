"""The entry point: finds the command, runs it, turns whatever it raises into words and a code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import rich_click as click

from trellis.cli.exits import OK, report

_COMMANDS: Final = ("demo", "doctor", "migrate", "worker")


class _LazyGroup(click.RichGroup):
    """Imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's shape
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Any:  # noqa: ANN401 - click's shape
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        return import_module(f"trellis.cli.commands.{cmd_name}").command


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trellis-jobs", prog_name="trellis")
def trellis() -> None:
    """Durable jobs for Python services.

    Start with `trellis demo`, then `trellis worker your_module:service`.
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
    sys.exit(run(sys.argv[1:]))
