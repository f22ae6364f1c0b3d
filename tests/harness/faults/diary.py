"""The nemesis log: what was done to whom, and when it was over."""

from __future__ import annotations

import time
from pathlib import Path

from tests.harness.faults.checker.histories import FaultKind
from tests.harness.faults.recorder import Log, boot_ns


class Diary:
    """Writes faults down."""

    def __init__(self, path: Path) -> None:
        self._log = Log(path)
        self._last = 0

    def begin(
        self, kind: FaultKind, target: str, pids: list[int], *, grace: float = 0, at: int = 0
    ) -> int:
        """Write down what is about to be done, or was done just then."""
        self._last += 1
        at = at or boot_ns()
        facts = {"number": self._last, "kind": kind, "target": target, "pids": pids}
        facts |= {"at": at, "began_at": _engine_time(at), "grace": int(grace * 1e9)}
        self._log.write(event="fault", **facts)
        return self._last

    def over(self, number: int, held_up: int = 0) -> None:
        """Write down that it is over, and how long its victims had been kept from running."""
        ended_at = _engine_time(boot_ns())
        self._log.write(event="over", number=number, held_up=held_up, ended_at=ended_at)


def _engine_time(at: int) -> int:
    """Return the same moment as engines tell it: microseconds of this machine's wall clock."""
    return (time.time_ns() - (boot_ns() - at)) // 1000
