"""What people give for options, checked: every refusal shows it and says what to write instead.

Type checkers find most of this earlier, but not every program is checked.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from reprlib import repr as shown
from typing import Final, TypeVar, get_args

from trellis.core.durations import Instant, Micros, micros, to_instant
from trellis.errors import ConfigurationError

#: Nothing is waited for or kept longer; sums of instants and spans stay far from any overflow.
LONGEST: Final = micros("36525d")

W = TypeVar("W", bound=str)


def span(name: str, given: object) -> Micros:
    """Return a length of time in microseconds."""
    if isinstance(given, bool) or not isinstance(given, str | int | float | timedelta):
        raise ConfigurationError(
            f"{name}={shown(given)} is not a span of time. Write it like {name}='30s', "
            f"{name}=2.5 (seconds) or {name}=timedelta(hours=1)."
        )
    try:
        value = micros(given)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error
    except OverflowError:
        value = LONGEST + 1
    if value > LONGEST:
        raise ConfigurationError(
            f"{name}={shown(given)} is longer than 100 years. Write a shorter span."
        )
    return value


def positive_span(name: str, given: object) -> Micros:
    """Return a length of time above zero."""
    value = span(name, given)
    if value == 0:
        raise ConfigurationError(
            f"{name}={shown(given)} leaves no time at all. Write a span above zero, like "
            f"{name}='10m', or leave it out."
        )
    return value


def moment(name: str, given: object) -> Instant:
    """Return an instant; only an aware datetime names one."""
    if not isinstance(given, datetime):
        raise ConfigurationError(
            f"{name}={shown(given)} is not an aware datetime. Write "
            f"{name}=datetime(2030, 1, 1, tzinfo=UTC)."
        )
    return to_instant(given)


def whole_number(name: str, given: object, *, least: int | None = None) -> int:
    """Return a whole number, at least `least`."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise ConfigurationError(
            f"{name}={shown(given)} is not a whole number. Write it like {name}={least or 1}."
        )
    if least is not None and given < least:
        raise ConfigurationError(f"{name}={shown(given)} is too small. Use at least {least}.")
    return given


def text(name: str, given: object, example: str) -> str:
    """Return a text."""
    if not isinstance(given, str):
        raise ConfigurationError(
            f"{name}={shown(given)} is not a text. Write it like {name}={example!r}."
        )
    return given


def flag(name: str, given: object) -> bool:
    """Return True or False, and nothing that only looks like it."""
    if not isinstance(given, bool):
        raise ConfigurationError(
            f"{name}={shown(given)} is neither True nor False. Write {name}=True or {name}=False."
        )
    return given


def one_of(words: object, name: str, given: W) -> W:
    """Return a word, if it is one of those that this `Literal` names."""
    known = get_args(words)
    if given not in known:
        raise ConfigurationError(
            f"{name}={shown(given)} is no word that {name} knows. Write one of "
            f"{', '.join(map(repr, known))}."
        )
    return given
