"""How a command ends: the exit code and the words for each kind of failure.

One or two sentences: what happened and what to do next. A traceback is shown only with `--debug`.
The codes are a table from the stable codes of `trellis.errors`; scripts may rely on them.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Final

import click

from trellis.cli.escaping import visible_block
from trellis.errors import TrellisError

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4
UNREACHABLE: Final = 5
TIMED_OUT: Final = 6
INTERRUPTED: Final = 130

#: The exit code of every error, by its code or by that of the nearest class above it.
CODES: Final = {
    "trellis": FAILED,
    "configuration": USAGE,
    "not_admitted": REFUSED,
    "payload_invalid": USAGE,
    "key_unresolved": USAGE,
    "job": FAILED,
    "job_not_found": NOT_FOUND,
    "ambiguous_id": USAGE,
    "command_rejected": REFUSED,
    "conflict": REFUSED,
    "wait_timeout": TIMED_OUT,
    "job_not_completed": FAILED,
    "not_found": NOT_FOUND,
    "move_refused": REFUSED,
    "engine": UNREACHABLE,
    "capability_missing": USAGE,
}


class CommandFailed(Exception):
    """A command did its work, and what it found is bad; it has said so already."""

    def __init__(self, exit_code: int = FAILED) -> None:
        super().__init__()
        self.exit_code = exit_code


def code_for(error: type[TrellisError]) -> int:
    """Return the exit code of a kind of error."""
    lineage = (kind.code for kind in error.__mro__ if issubclass(kind, TrellisError))
    return next(CODES[code] for code in lineage if code in CODES)


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
            complain("\n".join([str(error), *getattr(error, "__notes__", ())]))
            return code_for(type(error))
        case BrokenPipeError():
            # Whoever read our output has gone; writing more would only raise again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        case _:
            complain(f"{type(error).__name__}: {error}. Run it again with --debug to see where.")
            return FAILED


def complain(text: str) -> None:
    """Write a sentence to stderr."""
    sys.stderr.write(f"{visible_block(text)}\n")
