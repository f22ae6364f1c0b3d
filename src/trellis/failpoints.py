"""Named places where a test may make this process die.

A failpoint does nothing unless `TRELLIS_FAILPOINT` names it when the process starts, as
`name` or `name:n` for the n-th time it is reached. The process then ends as by `kill -9`: no
`finally`, no `atexit`, no flush. Crash tests walk n upwards until the process survives, so every
step between two failpoints has been a place of death.
"""

from __future__ import annotations

import os
import signal


def _parse(value: str) -> tuple[str, int]:
    name, _, count = value.partition(":")
    return name, int(count or "1")


_armed, _remaining = _parse(os.environ.get("TRELLIS_FAILPOINT", ""))


def reach(name: str) -> None:
    """Die here if this failpoint is armed and its count is used up."""
    if name != _armed:
        return
    global _remaining  # noqa: PLW0603 - one process-wide countdown is the whole point
    _remaining -= 1
    if _remaining <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
