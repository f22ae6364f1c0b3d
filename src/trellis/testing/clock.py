"""A clock that a test moves: wall clock, lease clock and boot id, independent of each other.

`advance` moves both clocks, as time does; `step_wall` changes only the wall clock, as setting it
does; `reboot` gives another boot id and resets the lease clock. Leases must react to each in its
way.
"""

from __future__ import annotations

from typing import Final

from trellis.core.durations import SECOND, Duration, Instant, Micros, micros

#: 2030-01-01T00:00:00Z.
START: Final[Instant] = 1_893_456_000 * SECOND
_FIRST_LEASE_TIME: Final = 1000 * SECOND
_AFTER_A_BOOT: Final = 10 * SECOND


class ManualClock:
    """A `trellis.engines.clock.Clock` that moves only when a test moves it.

    >>> clock = ManualClock()
    >>> before = clock.now()
    >>> clock.advance("1m30s")
    >>> clock.now() - before
    90000000
    """

    def __init__(self, start: Instant = START) -> None:
        self._wall = start
        self._lease = _FIRST_LEASE_TIME
        self._boots = 1

    def now(self) -> Instant:
        """Return the wall clock."""
        return self._wall

    def lease_now(self) -> int:
        """Return the clock by which leases expire."""
        return self._lease

    def boot_id(self) -> str:
        """Return the id of this boot."""
        return f"boot-{self._boots}"

    def advance(self, duration: Duration) -> None:
        """Let time pass, on both clocks; a bare number is in seconds."""
        self.advance_micros(micros(duration))

    def advance_micros(self, length: Micros) -> None:
        """Let this many microseconds pass, on both clocks."""
        if length < 0:
            raise ValueError(
                "Time cannot pass backwards. To set the wall clock back, use step_wall."
            )
        self._wall += length
        self._lease += length

    def advance_to(self, instant: Instant) -> None:
        """Let time pass until the wall clock shows this instant."""
        self.advance_micros(instant - self._wall)

    def step_wall(self, duration: Duration, *, back: bool = False) -> None:
        """Set the wall clock forward (or back) while no time passes."""
        self._wall += -micros(duration) if back else micros(duration)

    def reboot(self) -> None:
        """Restart the machine: another boot id, and the lease clock starts again."""
        self._boots += 1
        self._lease = _AFTER_A_BOOT
