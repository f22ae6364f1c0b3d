"""Which job types crashed worker processes recently; their jobs run apart in the next ones.

If one job was in a process that died, its type is the cause. If there were several, all their types
are under suspicion for a short while. Their jobs run alone next (they are suspects), so the cause
soon crashes a handler process of its own; then the other types are free of suspicion.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from trellis.core.job import Fence
from trellis.worker.isolation.apart import APART

#: How long types under suspicion run apart, in seconds, if no crash shows which of them it was.
_SUSPICION: Final = 60.0


class CrashedTypes:
    """Remembers types, as service/type, each for a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._crashed: dict[str, float] = {}
        self._suspected: dict[str, float] = {}

    def add_crash(self, name: str) -> None:
        """Remember a type that has certainly crashed a process; suspect no other one."""
        self._crashed[name] = self._clock() + APART
        self._suspected.clear()

    def add_death(self, types: Mapping[Fence, str], culprit: Fence | None = None) -> None:
        """Remember the types of the attempts that were in a process that died."""
        if culprit is not None:
            names = {types[culprit]} if culprit in types else set()  # else: a job that is over
        else:
            names = set(types.values())
        if len(names) == 1:
            self.add_crash(*names)
        elif not any(name in self._crashed for name in names):
            until = self._clock() + _SUSPICION
            self._suspected.update(dict.fromkeys(names, until))

    def apart(self) -> dict[str, float]:
        """Return the types whose jobs run apart, and for how many seconds more."""
        now = self._clock()
        until = {**self._suspected, **self._crashed}
        return {name: end - now for name, end in until.items() if end > now}
