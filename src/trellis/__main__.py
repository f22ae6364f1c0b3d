"""The `trellis` command, also as `python -m trellis`."""

from __future__ import annotations

# Importing `signal` takes longer, and until it is done Ctrl-C shows a traceback.
import _signal  # type: ignore[import-not-found] # it has no stub
import os


def main() -> None:
    """Run the command line; Ctrl-C before and after it ends the process with one line.

    Only while a command runs does Ctrl-C raise `KeyboardInterrupt`.
    """
    is_default = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if is_default:
        _signal.signal(_signal.SIGINT, _end)
    from trellis.cli.app import main as run  # noqa: PLC0415 - may be interrupted

    run(takes_interrupts=is_default)


def _end(*_: object) -> None:
    os.write(2, b"Interrupted.\n")
    os._exit(130)


if __name__ == "__main__":
    main()
