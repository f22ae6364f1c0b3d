"""How a command ends: the exit code and the words for each kind of failure.

One or two sentences: what happened and what to do next. A traceback is shown only with `--debug`.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Final

import click

from trellis.errors import ConfigurationError, TrellisError

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 5
INTERRUPTED: Final = 130

_UNREACHABLE_CODES: Final = frozenset(
    {
        "engine_unavailable",
        "engine_busy",
        "disk_full",
        "engine_closed",
        "read_only",
        "database_missing",
        "not_a_database",
    }
)


class CommandFailed(Exception):
    """A command did its work, and what it found is bad; it has said so already."""

    def __init__(self, exit_code: int = FAILED) -> None:
        super().__init__()
        self.exit_code = exit_code


def code_for(error: TrellisError) -> int:
    """Return the exit code of an error."""
    if isinstance(error, ConfigurationError):
        return USAGE
    return UNREACHABLE if error.code in _UNREACHABLE_CODES else FAILED


def report(error: BaseException, *, debug: bool) -> int:
    """Tell people what went wrong; return the exit code."""
    if debug and not isinstance(error, click.ClickException | CommandFailed):
        traceback.print_exception(error)
    match error:
        case CommandFailed():
            return error.exit_code
        case click.exceptions.Exit():
            return error.exit_code
        case click.ClickException():
            error.show(sys.stderr)
            return error.exit_code
        case SystemExit():
            return error.code if isinstance(error.code, int) else FAILED
        case KeyboardInterrupt() | click.Abort():
            complain("Interrupted.")
            return INTERRUPTED
        case TrellisError():
            complain(str(error))
            return code_for(error)
        case BrokenPipeError():
            # Whoever read our output has gone; writing more would only raise again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        case _:
            complain(f"{type(error).__name__}: {error}. Run it again with --debug to see where.")
            return FAILED


def complain(text: str) -> None:
    """Write a sentence to stderr."""
    sys.stderr.write(f"{text}\n")
