"""Failpoints: named lines where a test can kill this process.

A failpoint does nothing unless `TRELLIS_FAILPOINT` names it when the process starts, as
`name` or `name:n` for the n-th time it is reached. The process then ends as by `kill -9`: no
`finally`, no `atexit`, no flush. Crash tests increase n until the process survives, so that it has
been killed at every failpoint.
"""

from __future__ import annotations

import os
import signal


def _parse(value: str) -> tuple[str, int]:
    name, _, count = value.partition(":")
    return name, int(count or "1")


_armed, _remaining = _parse(os.environ.get("TRELLIS_FAILPOINT", ""))


def reach(name: str) -> None:
    """Kill this process if this failpoint is armed and its count is used up."""
    if name != _armed:
        return
    global _remaining  # noqa: PLW0603 - one countdown per process
    _remaining -= 1
    if _remaining <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
