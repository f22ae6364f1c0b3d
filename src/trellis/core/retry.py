"""Retry policies: which exceptions are retried, and how long to wait before the next attempt.

The delay is a function of the attempt and of a random number (`roll`, from 0 to 1) that the caller
passes, so the same command always leads to the same decision. `Retry()` makes five
attempts, 5 s, 30 s, 2 min and 10 min apart.

Engines store a policy as text: exceptions by their names, and no `backoff` function. The worker
that ran the handler applies both, by the declaration that it has; failures that are settled without
the handler's exception (a lost worker, a crash, a timeout) follow the stored delays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, TypedDict, Unpack, cast

from trellis.core.durations import Duration, Micros, micros
from trellis.errors import ConfigurationError

Shape = Literal["list", "fixed", "quadratic", "exponential"]

#: A class of exceptions, or the name under which its module defines it: `"httpx.ReadTimeout"`.
ExceptionClass: TypeAlias = type[BaseException] | str
#: One class of exceptions, or several.
Exceptions: TypeAlias = ExceptionClass | Iterable[ExceptionClass]
#: Takes the failed attempt (the first is 1) and its exception; None: the delay of the policy.
Backoff: TypeAlias = Callable[[int, BaseException], Duration | None]


class RetryRules(TypedDict, total=False):
    """Rules that every retry policy may have."""

    #: Retry only these exceptions; others fail the job at once.
    on: Exceptions
    #: Never retry these exceptions.
    never_on: Exceptions
    #: Computes the delay in the worker, instead of the policy's own delays.
    backoff: Backoff | None


_DEFAULT_DELAYS: Final = tuple(micros(delay) for delay in ("5s", "30s", "2m", "10m", "30m"))
_YEAR: Final = micros("365d")


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy: how many attempts, and the delay after each failed one."""

    #: How many times a job may run; the first run counts as one.
    attempts: int = 5
    #: How the delay grows: `fixed`, base x attempt², first x factorⁿ, or a list of delays.
    shape: Shape = "list"
    #: The delays themselves for `list`; the first (or base) delay otherwise.
    delays: tuple[Micros, ...] = _DEFAULT_DELAYS
    #: Of `exponential`: each delay is this many times the one before.
    factor: float = 2.0
    #: The longest delay, before jitter.
    cap: Micros = _YEAR
    #: Part of the delay that is random: 0.1 means up to 10 % longer.
    jitter: float = 0.0
    #: Only these exceptions of a handler are retried, and their subclasses; empty: all are.
    on: Exceptions = ()
    #: These exceptions of a handler and their subclasses are never retried.
    never_on: Exceptions = ()
    #: Computes the delay in the worker; it is not stored.
    backoff: Backoff | None = field(default=None, compare=False)

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
        object.__setattr__(self, "on", _names("on", self.on))
        object.__setattr__(self, "never_on", _names("never_on", self.never_on))
        if self.backoff is not None and not callable(self.backoff):
            raise ConfigurationError(
                f"backoff={self.backoff!r} is not a function. Write backoff=lambda attempt, error: "
                "'30s', or use Retry.fixed('30s')."
            )

    @classmethod
    def never(cls) -> Retry:
        """One attempt, no retry."""
        return cls(attempts=1)

    @classmethod
    def after(cls, *delays: Duration, jitter: float = 0.0, **rules: Unpack[RetryRules]) -> Retry:
        """Wait these delays in turn: `Retry.after("5s", "30s")` makes three attempts."""
        return cls(len(delays) + 1, "list", tuple(map(micros, delays)), jitter=jitter, **rules)

    @classmethod
    def fixed(
        cls,
        delay: Duration,
        *,
        attempts: int = 5,
        jitter: float = 0.0,
        **rules: Unpack[RetryRules],
    ) -> Retry:
        """Wait the same time after each failed attempt."""
        return cls(attempts, "fixed", (micros(delay),), jitter=jitter, **rules)

    @classmethod
    def quadratic(
        cls,
        base: Duration,
        *,
        attempts: int = 3,
        cap: Duration = "1h",
        **rules: Unpack[RetryRules],
    ) -> Retry:
        """Wait base x attempt², at most `cap`."""
        return cls(attempts, "quadratic", (micros(base),), cap=micros(cap), **rules)

    @classmethod
    def exponential(
        cls,
        first: Duration = "5s",
        *,
        attempts: int = 5,
        factor: float = 2.0,
        cap: Duration = "30m",
        jitter: float = 0.1,
        **rules: Unpack[RetryRules],
    ) -> Retry:
        """Wait first x factorⁿ, at most `cap`, randomly up to `jitter` longer."""
        return cls(attempts, "exponential", (micros(first),), factor, micros(cap), jitter, **rules)

    def allows(self, error: BaseException) -> bool:
        """Return whether this exception of a handler may be retried."""
        if not self.on and not self.never_on:
            return True
        names = {_name_of(kind) for kind in type(error).__mro__}
        on, never_on = (cast("tuple[str, ...]", each) for each in (self.on, self.never_on))
        return names.isdisjoint(never_on) and (not on or not names.isdisjoint(on))

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


def _names(option: str, given: Exceptions) -> tuple[str, ...]:
    """Return the names of these classes, in order, because equal policies must have equal text."""
    kinds = (given,) if isinstance(given, str | type) else tuple(given)
    return tuple(sorted({_checked_name(option, kind) for kind in kinds}))


def _checked_name(option: str, kind: object) -> str:
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return _name_of(kind)
    if isinstance(kind, str) and all(part.isidentifier() for part in kind.split(".")):
        return kind.removeprefix("builtins.")
    raise ConfigurationError(
        f"{option} names {kind!r}, which is not a class of exceptions. Write it like "
        f"{option}=(ConnectionError, TimeoutError), or as the name of a class: 'httpx.ReadTimeout'."
    )


def _name_of(kind: type) -> str:
    is_builtin = kind.__module__ == "builtins"
    return kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"
