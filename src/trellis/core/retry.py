"""Retry policies: how long to wait before the next attempt.

The delay is a function of the attempt and of a random number (`roll`, from 0 to 1) that the caller
passes, so the same command always leads to the same decision. `Retry()` makes five
attempts, 5 s, 30 s, 2 min and 10 min apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from trellis.core.durations import Duration, Micros, micros
from trellis.errors import ConfigurationError

Shape = Literal["list", "fixed", "quadratic", "exponential"]

_DEFAULT_DELAYS: Final = tuple(micros(delay) for delay in ("5s", "30s", "2m", "10m", "30m"))
_YEAR: Final = micros("365d")


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy: how many attempts, and the delay after each failed one."""

    attempts: int = 5
    shape: Shape = "list"
    #: The delays themselves for `list`; the first (or base) delay otherwise.
    delays: tuple[Micros, ...] = _DEFAULT_DELAYS
    factor: float = 2.0
    cap: Micros = _YEAR
    #: Part of the delay that is random: 0.1 means up to 10 % longer.
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigurationError("Retry needs at least 1 attempt: the first run counts as one.")
        if not self.delays or min(self.delays) < 0:
            raise ConfigurationError("Retry needs at least one delay, and none below zero.")
        if self.factor <= 0 or self.jitter < 0:
            raise ConfigurationError("Retry needs a factor above 0 and a jitter of 0 or more.")
        # Equal policies must have equal JSON text: 2 == 2.0, but their texts differ.
        object.__setattr__(self, "factor", float(self.factor))
        object.__setattr__(self, "jitter", float(self.jitter))

    @classmethod
    def never(cls) -> Retry:
        """One attempt, no retry."""
        return cls(attempts=1)

    @classmethod
    def after(cls, *delays: Duration, jitter: float = 0.0) -> Retry:
        """Wait these delays in turn: `Retry.after("5s", "30s")` makes three attempts."""
        return cls(len(delays) + 1, "list", tuple(map(micros, delays)), jitter=jitter)

    @classmethod
    def fixed(cls, delay: Duration, *, attempts: int = 5, jitter: float = 0.0) -> Retry:
        """Wait the same time after each failed attempt."""
        return cls(attempts, "fixed", (micros(delay),), jitter=jitter)

    @classmethod
    def quadratic(cls, base: Duration, *, attempts: int = 3, cap: Duration = "1h") -> Retry:
        """Wait base x attempt²."""
        return cls(attempts, "quadratic", (micros(base),), cap=micros(cap))

    @classmethod
    def exponential(
        cls,
        first: Duration = "5s",
        *,
        attempts: int = 5,
        factor: float = 2.0,
        cap: Duration = "30m",
        jitter: float = 0.1,
    ) -> Retry:
        """Wait first x factorⁿ, at most `cap`, randomly up to `jitter` longer."""
        return cls(attempts, "exponential", (micros(first),), factor, micros(cap), jitter)

    def delay(self, attempt: int, roll: float) -> Micros:
        """Return the delay after this failed attempt (the first is 1)."""
        base = min(self._base(max(attempt, 1)), self.cap)
        return base + int(base * self.jitter * roll)

    def _base(self, attempt: int) -> Micros:
        if self.shape == "list":
            return self.delays[min(attempt, len(self.delays)) - 1]
        first = self.delays[0]
        if self.shape == "quadratic":
            return first * attempt * attempt
        if self.shape == "exponential":
            try:
                return min(int(first * self.factor ** (attempt - 1)), self.cap)
            except OverflowError:
                return self.cap
        return first
