"""Checks of options: each error shows the value and says what to write instead.

Type checkers find most of these mistakes earlier, but not every program is checked.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from reprlib import repr as shown
from typing import Final, TypeVar

from trellis.core.durations import Instant, Micros, micros, to_instant
from trellis.core.policy import check_word
from trellis.errors import ConfigurationError

#: The longest duration, so that no sum of instants and durations overflows.
LONGEST: Final = micros("36525d")

W = TypeVar("W", bound=str)


def duration(name: str, value: object) -> Micros:
    """Return a duration in microseconds."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | timedelta):
        raise ConfigurationError(
            f"{name}={shown(value)} is not a duration. Write it like {name}='30s', "
            f"{name}=2.5 (seconds) or {name}=timedelta(hours=1)."
        )
    try:
        length = micros(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error
    except OverflowError:
        length = LONGEST + 1
    if length > LONGEST:
        raise ConfigurationError(
            f"{name}={shown(value)} is longer than 100 years. Write a shorter duration."
        )
    return length


def positive_duration(name: str, value: object) -> Micros:
    """Return a duration above zero, in microseconds."""
    length = duration(name, value)
    if length == 0:
        raise ConfigurationError(
            f"{name}={shown(value)} leaves no time at all. Write a duration above zero, like "
            f"{name}='10m', or leave it out."
        )
    return length


def instant(name: str, value: object) -> Instant:
    """Return the instant of an aware datetime."""
    if not isinstance(value, datetime):
        raise ConfigurationError(
            f"{name}={shown(value)} is not an aware datetime. Write "
            f"{name}=datetime(2030, 1, 1, tzinfo=UTC)."
        )
    return to_instant(value)


def whole_number(name: str, value: object, *, least: int | None = None) -> int:
    """Return a whole number, at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(
            f"{name}={shown(value)} is not a whole number. Write it like {name}={least or 1}."
        )
    if least is not None and value < least:
        raise ConfigurationError(f"{name}={shown(value)} is too small. Use at least {least}.")
    return value


def text(name: str, value: object, example: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise ConfigurationError(
            f"{name}={shown(value)} is not a text. Write it like {name}={example!r}."
        )
    return value


def flag(name: str, value: object) -> bool:
    """Return True or False; other values are refused."""
    if not isinstance(value, bool):
        raise ConfigurationError(
            f"{name}={shown(value)} is neither True nor False. Write {name}=True or {name}=False."
        )
    return value


def one_of(choices: object, name: str, value: W) -> W:
    """Return the value if it is one of those in this `Literal`."""
    check_word(name, value, choices)
    return value
