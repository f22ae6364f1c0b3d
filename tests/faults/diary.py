"""The nemesis log: what was done to whom, until when, and how busy the machine was meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from tests.faults.checker.histories import FaultKind
from tests.faults.recorder import Log, boot_ns
from tests.faults.waiting import LOOK_EVERY

#: Nanoseconds a wait takes too long on any machine.
_USUAL_DELAY: Final = 2_000_000


class Diary:
    """Writes faults down."""

    def __init__(self, path: Path) -> None:
        self._log = Log(path)
        #: The number of the latest entry.
        self.last = 0
        self._held_up = 0
        self._held_up_before: dict[int, int] = {}

    def begin(
        self, kind: FaultKind, target: str, pids: list[int], *, grace: float = 0, at: int = 0
    ) -> int:
        """Write down what is about to be done, or was done just then."""
        self.last += 1
        facts = {"number": self.last, "kind": kind, "target": target, "pids": pids}
        self._held_up_before[self.last] = self._held_up
        self._log.write(event="fault", at=at or boot_ns(), grace=int(grace * 1e9), **facts)
        return self.last

    def over(self, number: int) -> None:
        """Write down that it is over."""
        held_up = self._held_up - self._held_up_before[number]
        self._log.write(event="over", number=number, held_up=held_up)

    async def measure(self) -> None:
        """Add up by how much waits of ours take too long, until cancelled."""
        while True:
            began = boot_ns()
            await asyncio.sleep(LOOK_EVERY)
            self._held_up += max(0, boot_ns() - began - int(LOOK_EVERY * 1e9) - _USUAL_DELAY)
