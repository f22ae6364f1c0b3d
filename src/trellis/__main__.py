"""The `trellis` command, also as `python -m trellis`."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; Ctrl-C while it is imported ends the process without a traceback."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from trellis.cli.app import main as run  # noqa: PLC0415 - may be interrupted

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
