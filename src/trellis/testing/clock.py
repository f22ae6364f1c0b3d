"""A clock that moves only when told to: wall clock, lease clock and boot id, each on its own.

`advance` is time passing; `step_wall` is somebody setting the clock; `reboot` is the machine
starting again. What each must and must not lapse is what the tests of leases are about.
"""

from __future__ import annotations

from typing import Final

from trellis.core.durations import SECOND, Duration, Instant, Micros, micros

#: 2030-01-01T00:00:00Z.
START: Final[Instant] = 1_893_456_000 * SECOND
_FIRST_LEASE_MOMENT: Final = 1000 * SECOND
_AFTER_A_BOOT: Final = 10 * SECOND


class ManualClock:
    """A `trellis.engines.clock.Clock` in the hands of a test.

    >>> clock = ManualClock()
    >>> before = clock.now()
    >>> clock.advance("1m30s")
    >>> clock.now() - before
    90000000
    """

    def __init__(self, start: Instant = START) -> None:
        self._wall = start
        self._lease = _FIRST_LEASE_MOMENT
        self._boots = 1

    def now(self) -> Instant:
        """Return the wall clock."""
        return self._wall

    def lease_now(self) -> int:
        """Return the clock that leases are judged by."""
        return self._lease

    def boot_id(self) -> str:
        """Return what names this boot."""
        return f"boot-{self._boots}"

    def advance(self, span: Duration) -> None:
        """Let time pass, on both clocks; a bare number counts seconds."""
        self.advance_micros(micros(span))

    def advance_micros(self, length: Micros) -> None:
        """Let this many microseconds pass, on both clocks."""
        if length < 0:
            raise ValueError("Time does not run backwards; somebody may set a clock: step_wall.")
        self._wall += length
        self._lease += length

    def advance_to(self, moment: Instant) -> None:
        """Let time pass until the wall clock shows this instant."""
        self.advance_micros(moment - self._wall)

    def step_wall(self, span: Duration, *, back: bool = False) -> None:
        """Set the wall clock forward (or back) while no time passes."""
        self._wall += -micros(span) if back else micros(span)

    def reboot(self) -> None:
        """Start the machine again: another boot id, the lease clock from its beginning."""
        self._boots += 1
        self._lease = _AFTER_A_BOOT
